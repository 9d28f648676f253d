"""Weights between processes on the same device: `npu_ipc` (vllm-ascend) and `ipc` (vLLM).

The engines of both libraries send handles of device memory as a pickle, which a server reads only with
VLLM_ALLOW_INSECURE_SERIALIZATION=1; `choose` takes these transports only when asked. The pickle is made here of the
library's own handles and read by the server of this training, behind its token.
Sources: vllm-ascend 0.23.0 `npu_ipc_engine.py`; vLLM 0.23 and 0.31 `ipc_engine.py`.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.weights.control import ControlPlane, ServerCallError
from ascent.rollout.weights.transports.base import Named, update_body
from ascent.rollout.weights.transports.chunks import Chunk, device_chunks
from ascent.rollout.weights.update_api import Generation, generation

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_CHUNK_BYTES = 256 * 2**20
_STATIC = {
    "npu_ipc": ("vllm_ascend.distributed.weight_transfer.npu_ipc_engine", "NPUIPC"),
    "ipc": ("vllm.distributed.weight_transfer.ipc_engine", "IPC"),
}


class IpcTransport:
    """`npu_ipc` or `ipc`. Chunks are packed into one buffer of device memory, which the worker copies from."""

    def __init__(
        self,
        backend: str,
        dtype: str,
        device: str,
        *,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        timeout: float = 300.0,
    ) -> None:
        """Raises WeightSyncError in a training of several processes: the libraries gather handles from all of them."""
        _check_single_process(backend)
        self.backend = backend
        self._dtype, self._device = dtype, device
        self._chunk_bytes, self._timeout = chunk_bytes, timeout
        self._connected: dict[str, str] = {}

    def connect(self, replicas: Sequence[ControlPlane], incarnations: Mapping[str, str]) -> Mapping[str, Exception]:
        """See Transport."""
        failed: dict[str, Exception] = {}
        for replica in replicas:
            incarnation = incarnations.get(replica.url, "")
            if self._connected.get(replica.url) == incarnation:
                continue
            info = {"packed": True} if generation(replica.vllm_version).stateful_trainer else {}
            try:
                replica.post("/init_weight_transfer_engine", {"init_info": info}, timeout=self._timeout)
                self._connected[replica.url] = incarnation
            except ServerCallError as error:
                failed[replica.url] = error
        return failed

    def send(
        self, replicas: Sequence[ControlPlane], tensors: Named, observe: Callable[[str, Tensor], None]
    ) -> Mapping[str, Exception]:
        """See Transport."""
        failed: dict[str, Exception] = {}
        for chunk in device_chunks(tensors, self._dtype, self._device, self._chunk_bytes, observe):
            alive = [replica for replica in replicas if replica.url not in failed]
            if alive:
                made = generation(alive[0].vllm_version)
                self._send_chunk(chunk, made, functools.partial(self._post, alive, failed))
        return failed

    def close(self) -> None:
        """See Transport."""

    def _send_chunk(self, chunk: Chunk, made: Generation, post: Callable[[dict[str, Any]], None]) -> None:
        size = max(1, sum(tensor.numel() * tensor.element_size() for _, tensor in chunk))
        if made.stateful_trainer:
            if self.backend == "npu_ipc":
                raise WeightSyncError("weights over NPU IPC are known for vllm-ascend 0.23 to 0.27")
            _send_stateful(chunk, size, post)
            return
        name, prefix = _STATIC[self.backend]
        module = importlib.import_module(name)
        arguments = getattr(module, f"{prefix}TrainerSendWeightsArgs")(
            send_mode=lambda info: post(_fields(info)), packed=True, packed_buffer_size_bytes=size
        )
        getattr(module, f"{prefix}WeightTransferEngine").trainer_send_weights(iter(chunk), arguments)

    def _post(self, replicas: Sequence[ControlPlane], failed: dict[str, Exception], info: dict[str, Any]) -> None:
        body = update_body(_over_http(info))
        with ThreadPoolExecutor(len(replicas), thread_name_prefix="ascent-weights") as pool:
            calls = {r.url: pool.submit(r.post, "/update_weights", body, timeout=self._timeout) for r in replicas}
        for url, call in calls.items():
            error = call.exception()
            if isinstance(error, ServerCallError):
                failed[url] = error
            elif error is not None:
                raise error


def _send_stateful(chunk: Chunk, size: int, post: Callable[[dict[str, Any]], None]) -> None:
    """vLLM from 0.28 on; the calls around an update are the delivery's, so the client leaves them out."""
    from vllm.distributed.weight_transfer.base import WeightSource
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine

    class Source(WeightSource):
        def metadata(self) -> list[Any]:
            raise NotImplementedError  # not asked for by this engine

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(chunk)

    class Client:
        def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

        def start_weight_update(self) -> None: ...

        def update_weights(self, update_info: Any) -> None:
            post(update_info)

        def finish_weight_update(self, weight_version: str | None = None) -> None: ...

    info = IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=size)
    engine = IPCTrainerWeightTransferEngine.trainer_init(info, client=Client(), source=Source())
    engine.send_weights()


def _fields(info: Any) -> dict[str, Any]:
    """The fields of a library's update info, handles as they are."""
    return {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}


def _over_http(info: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in info.items() if value is not None and key != "ipc_handles"}
    fields["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(info["ipc_handles"])).decode()
    return fields


def _check_single_process(backend: str) -> None:
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        processes = torch.distributed.get_world_size()
        if processes > 1:
            raise WeightSyncError(f"the transport {backend} needs a training of one process, not {processes}; use shm")
