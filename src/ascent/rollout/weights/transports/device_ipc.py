"""Weights between processes on the same device, by handles of its memory: what `npu_ipc` and `ipc` share.

The engines of both libraries take the handles as a pickle, which a server reads only with
VLLM_ALLOW_INSECURE_SERIALIZATION=1, so these transports are chosen only where that is set. The pickle is made here of
the library's own handles and read by the server of this training, behind its token.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.weights.control import ControlPlane, ServerCallError
from ascent.rollout.weights.transports.base import Named, api_of, update_body
from ascent.rollout.weights.transports.chunks import Chunk, device_chunks
from ascent.rollout.weights.update_api import UpdateApi

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_CHUNK_BYTES = 256 * 2**20
Post = Callable[[dict[str, Any]], None]


class DeviceIpcTransport:
    """A Transport. Chunks are packed into one buffer of device memory, which the worker copies from."""

    backend: ClassVar[str]

    def __init__(
        self,
        dtype: str,
        device: str,
        *,
        address: str | None = None,
        chunk_bytes: int | None = None,
        timeout: float = 300.0,
    ) -> None:
        """Raises WeightSyncError in a training of several processes: the libraries gather handles from all of them."""
        del address  # the servers are on this device
        _check_single_process(self.backend)
        self._dtype, self._device, self._timeout = dtype, device, timeout
        self._chunk_bytes = chunk_bytes or DEFAULT_CHUNK_BYTES
        self._connected: dict[str, str] = {}

    def _send_chunk(self, servers: UpdateApi, chunk: Chunk, size: int, post: Post) -> None:
        """Give a chunk of `size` bytes to the library, which calls `post` with the update's fields."""
        raise NotImplementedError

    def connect(self, replicas: Sequence[ControlPlane], incarnations: Mapping[str, str]) -> Mapping[str, Exception]:
        """See Transport."""
        failed: dict[str, Exception] = {}
        for replica in replicas:
            incarnation = incarnations.get(replica.url, "")
            if self._connected.get(replica.url) == incarnation:
                continue
            info = {"packed": True} if api_of(replica).stateful_trainer else {}
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
                size = max(1, sum(tensor.numel() * tensor.element_size() for _, tensor in chunk))
                self._send_chunk(api_of(alive[0]), chunk, size, functools.partial(self._post, alive, failed))
        return failed

    def close(self) -> None:
        """See Transport."""

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


def send_by_static_methods(module: str, prefix: str, chunk: Chunk, size: int, post: Post) -> None:
    """vLLM before 0.28, and vllm-ascend: static methods of the engine in `module`, its classes begin with `prefix`."""
    library = importlib.import_module(module)
    arguments = getattr(library, f"{prefix}TrainerSendWeightsArgs")(
        send_mode=lambda info: post(_fields(info)), packed=True, packed_buffer_size_bytes=size
    )
    getattr(library, f"{prefix}WeightTransferEngine").trainer_send_weights(iter(chunk), arguments)


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
