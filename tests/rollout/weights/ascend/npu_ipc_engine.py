"""Stands in for vllm_ascend/distributed/weight_transfer/npu_ipc_engine.py: the buffer is a file of shared memory."""

from __future__ import annotations

import base64
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class NPUIPCWeightTransferInitInfo:
    pass


@dataclass
class NPUIPCWeightTransferUpdateInfo:
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    ipc_handles: Any = None
    ipc_handles_pickled: str | None = None
    tensor_sizes: list[int] | None = None
    packed: bool = False

    def __post_init__(self) -> None:
        if self.packed and self.tensor_sizes is None:
            raise ValueError("`tensor_sizes` is required when packed=True")


@dataclass
class NPUIPCTrainerSendWeightsArgs:
    send_mode: str | Callable[[NPUIPCWeightTransferUpdateInfo], None]
    llm_handle: Any = None
    url: str | None = None
    packed: bool = False
    packed_buffer_size_bytes: int = 2**30


class NPUIPCWeightTransferEngine:
    init_info_cls = NPUIPCWeightTransferInitInfo
    update_info_cls = NPUIPCWeightTransferUpdateInfo

    def __init__(self, config: Any, parallel_config: Any, model: torch.nn.Module | None = None) -> None:
        pass

    def init_transfer_engine(self, init_info: NPUIPCWeightTransferInitInfo) -> None:
        pass

    def receive_weights(
        self,
        update_info: NPUIPCWeightTransferUpdateInfo,
        load_weights: Callable[[list[tuple[str, torch.Tensor]]], None],
    ) -> None:
        if update_info.ipc_handles_pickled is not None:
            if os.environ.get("VLLM_ALLOW_INSECURE_SERIALIZATION") != "1":
                raise ValueError(
                    "Refusing to deserialize `ipc_handles_pickled` without VLLM_ALLOW_INSECURE_SERIALIZATION=1"
                )
            update_info.ipc_handles = pickle.loads(base64.b64decode(update_info.ipc_handles_pickled))  # noqa: S301
        handle = update_info.ipc_handles[_chip()]
        with open(handle[0], "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        weights, offset = [], 0
        assert update_info.tensor_sizes is not None
        for name, dtype, shape, size in zip(
            update_info.names, update_info.dtype_names, update_info.shapes, update_info.tensor_sizes, strict=True
        ):
            part = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=offset).clone()
            weights.append((name, part.view(getattr(torch, dtype)).view(*shape)))
            offset += size
        load_weights(weights)

    @staticmethod
    def trainer_send_weights(
        iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: dict[str, Any] | NPUIPCTrainerSendWeightsArgs
    ) -> None:
        assert isinstance(trainer_args, NPUIPCTrainerSendWeightsArgs)
        assert trainer_args.packed
        assert callable(trainer_args.send_mode)
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="stand-in-npu-") as file:
            file.truncate(trainer_args.packed_buffer_size_bytes)
            memory = mmap.mmap(file.fileno(), trainer_args.packed_buffer_size_bytes)
            buffer = torch.frombuffer(memory, dtype=torch.uint8)
            names, dtypes, shapes = [], [], []
            sizes: list[int] = []
            for name, tensor in iterator:
                flat = tensor.contiguous().view(torch.uint8).view(-1)
                start = sum(sizes)
                if start + flat.numel() > buffer.numel():
                    raise ValueError(f"Tensor '{name}' exceeds buffer_size_bytes")
                buffer[start : start + flat.numel()].copy_(flat)
                names.append(name)
                dtypes.append(str(tensor.dtype).split(".")[-1])
                shapes.append(list(tensor.shape))
                sizes.append(flat.numel())
            handle = (file.name, None, None, None, None, None, 0)  # index 6 is the device
            trainer_args.send_mode(
                NPUIPCWeightTransferUpdateInfo(
                    names, dtypes, shapes, {_chip(): handle}, tensor_sizes=sizes, packed=True
                )
            )


def _chip() -> str:
    return "10.0.0.1-0"
