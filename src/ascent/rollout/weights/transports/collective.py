"""Weights by broadcast, from the trainer's device to all workers of all servers at once: `hccl` and `nccl`.

Trainer and workers form one group, in which each has a device of its own. A collective needs all its members: when a
server fails in the middle, no server gets these weights, and the group is made anew for the next ones.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ascent import devices
from ascent.rollout.engine import WeightSyncError
from ascent.rollout.weights.control import ControlPlane, ServerCallError
from ascent.rollout.weights.transports.base import Named, update_body
from ascent.rollout.weights.transports.chunks import Chunk, device_chunks
from ascent.rollout.weights.transports.collective_api import CollectiveApi, check_usable, collective_api
from ascent.rollout.weights.update_api import generation

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_CHUNK_BYTES = 512 * 2**20


class CollectiveTransport:
    """`hccl` or `nccl`. Up to three buffers of the trainer's device are used while weights are sent."""

    def __init__(
        self,
        backend: str,
        dtype: str,
        device: str,
        *,
        address: str | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        timeout: float = 300.0,
    ) -> None:
        """`device` is the trainer's, with its index ("npu:0"). `address`: this machine, as the servers reach it; found
        from the way to the first server when it is None."""
        self.backend = backend
        self._dtype, self._device = dtype, device
        self._address, self._chunk_bytes, self._timeout = address, chunk_bytes, timeout
        self._members: tuple[tuple[str, str], ...] = ()
        self._api: CollectiveApi | None = None
        self._group: Any = None
        self._worker: _DeviceThread | None = None

    def connect(self, replicas: Sequence[ControlPlane], incarnations: Mapping[str, str]) -> Mapping[str, Exception]:
        """See Transport. A group is made when there is none for exactly these servers."""
        members = tuple((replica.url, incarnations.get(replica.url, "")) for replica in replicas)
        if not replicas or (members == self._members and self._group is not None):
            return {}
        self._forget()
        try:
            self._open(replicas)
        except (ServerCallError, WeightSyncError, RuntimeError, OSError, TimeoutError) as error:
            self._forget()
            return {replica.url: WeightSyncError(f"no {self.backend} group: {error}") for replica in replicas}
        self._members = members
        return {}

    def send(
        self, replicas: Sequence[ControlPlane], tensors: Named, observe: Callable[[str, Tensor], None]
    ) -> Mapping[str, Exception]:
        """See Transport."""
        failed: dict[str, Exception] = {}
        whole = {url for url, _ in self._members} == {replica.url for replica in replicas}
        if not whole:  # one that was in the group failed since
            failed = self._broken(replicas, {})
        for chunk in device_chunks(tensors, self._dtype, self._device, self._chunk_bytes, observe):
            if not failed and replicas:
                failed = self._send_chunk(replicas, chunk)
        return failed

    def close(self) -> None:
        """See Transport."""
        self._forget()

    def _open(self, replicas: Sequence[ControlPlane]) -> None:
        self._api = collective_api(self.backend, generation(replicas[0].vllm_version), self._chunk_bytes)
        sizes = [
            int(replica.get("/get_world_size?include_dp=true", timeout=self._timeout)["world_size"])
            for replica in replicas
        ]
        address = self._address or _own_address(replicas[0].url)
        port, world_size = _free_port(), 1 + sum(sizes)
        self._worker = _DeviceThread(self._device)
        api, offset = self._api, 1
        pool = ThreadPoolExecutor(len(replicas), thread_name_prefix="ascent-weights")
        calls: list[Future[Any]] = []
        for replica, size in zip(replicas, sizes, strict=True):
            body = {"init_info": api.worker_info(address, port, offset, world_size)}
            calls.append(pool.submit(replica.post, "/init_weight_transfer_engine", body, timeout=self._timeout))
            offset += size
        opened = self._worker.submit(lambda: api.open(address, port, world_size))
        done, _ = wait([opened, *calls], timeout=self._timeout, return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=False)
        for call in done:
            call.result()
        if opened not in done or len(done) <= len(calls):
            raise TimeoutError(f"not all of {world_size} members joined at {address}:{port} in {self._timeout:g} s")
        self._group = opened.result()
        check_usable(self._group, self.backend)

    def _send_chunk(self, replicas: Sequence[ControlPlane], chunk: Chunk) -> dict[str, Exception]:
        assert self._api is not None
        assert self._worker is not None
        api, group = self._api, self._group
        body = update_body(api.update_info(chunk))
        pool = ThreadPoolExecutor(len(replicas), thread_name_prefix="ascent-weights")
        calls = {
            replica.url: pool.submit(replica.post, "/update_weights", body, timeout=self._timeout)
            for replica in replicas
        }
        sent = self._worker.submit(lambda: api.send(group, chunk))
        done, pending = wait([sent, *calls.values()], timeout=self._timeout, return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=False)
        errors = {url: error for url, call in calls.items() if call in done and (error := call.exception())}
        problem = sent.exception() if sent in done else None
        if not pending and not errors and problem is None:
            return {}
        reason = problem or next(iter(errors.values()), None) or TimeoutError(f"no end after {self._timeout:g} s")
        return self._broken(replicas, {url: e for url, e in errors.items() if isinstance(e, Exception)}, reason)

    def _broken(
        self, replicas: Sequence[ControlPlane], errors: Mapping[str, Exception], reason: BaseException | None = None
    ) -> dict[str, Exception]:
        """The group has lost a member: no server has all weights."""
        self._forget()
        why = f": {reason}" if reason else ""
        lost = WeightSyncError(f"the {self.backend} group lost a member, so nobody got all weights{why}")
        return {replica.url: errors.get(replica.url, lost) for replica in replicas}

    def _forget(self) -> None:
        self._group, self._members = None, ()
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


class _DeviceThread:
    """Runs everything that touches the group, with the device set. A daemon: a collective that never ends can't keep
    the process from ending."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ascent-collective", daemon=True).start()

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    def stop(self) -> None:
        self._tasks.put(None)

    def _run(self) -> None:
        while (item := self._tasks.get()) is not None:
            task, future = item
            try:
                _set_device(self._device)
                future.set_result(task())
            except BaseException as error:  # noqa: BLE001  # it is the caller's, who asks the future
                future.set_exception(error)


def _set_device(device: str) -> None:
    """The communicators take the current device of their thread."""
    kind, _, index = device.partition(":")
    accelerator: Any = devices.module(cast(Any, kind))
    if accelerator is not None:
        accelerator.set_device(int(index or accelerator.current_device()))


def _own_address(url: str) -> str:
    """This machine's address on the way to a server; nothing is sent."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        return str(way.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
