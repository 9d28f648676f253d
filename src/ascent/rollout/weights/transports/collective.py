"""Weights by broadcast, from the trainer's device to all workers of all servers at once: what `hccl` and `nccl` share.

Trainer and workers form one group, in which each has a device of its own. A collective needs all its members: when a
server fails in the middle, no server gets these weights, the group is abandoned, and a new one is made for the next
ones.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, ClassVar

from ascent.rollout.engine import WeightSyncError, WeightTransferError
from ascent.rollout.in_vllm.guard import GIVE_UP
from ascent.rollout.weights.control import ControlPlane, ServerCallError
from ascent.rollout.weights.transports.base import Named, api_of, update_body
from ascent.rollout.weights.transports.chunks import Chunk, device_chunks
from ascent.rollout.weights.transports.collective_api import CollectiveApi
from ascent.rollout.weights.transports.collective_group import CollectiveGroup, in_daemon_thread
from ascent.rollout.weights.transports.own_address import on_the_way_to
from ascent.rollout.weights.update_api import UpdateApi

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_CHUNK_BYTES = 512 * 2**20
_GIVE_UP_SECONDS = 4.0


class CollectiveTransport:
    """A Transport, with what a library of collectives has to add: its names, its reach, and how it is spoken to.

    Up to three buffers of the trainer's device are used while weights are sent.
    """

    backend: ClassVar[str]
    library: ClassVar[str]  # what must be loadable, for people

    def __init__(
        self,
        dtype: str,
        device: str,
        *,
        address: str | None = None,
        chunk_bytes: int | None = None,
        timeout: float = 300.0,
    ) -> None:
        """`address` is found from the way to the first server when it is None."""
        self._dtype, self._device = dtype, device
        self._address, self._timeout = address, timeout
        self._chunk_bytes = chunk_bytes or DEFAULT_CHUNK_BYTES
        self._members: tuple[tuple[str, str], ...] = ()
        self._group: CollectiveGroup | None = None

    def _api_for(self, servers: UpdateApi, buffer_bytes: int) -> CollectiveApi:
        """How the engine of these servers is spoken to. Raises WeightSyncError where that isn't known."""
        raise NotImplementedError

    def connect(self, replicas: Sequence[ControlPlane], incarnations: Mapping[str, str]) -> Mapping[str, Exception]:
        """See Transport. A group is made when there is none for exactly these servers."""
        members = tuple((replica.url, incarnations.get(replica.url, "")) for replica in replicas)
        if not replicas or (members == self._members and self._group is not None):
            return {}
        self._abandon()
        try:
            self._open(replicas)
        except (ServerCallError, WeightSyncError, RuntimeError, OSError, TimeoutError) as error:
            self._abandon()
            _tell_given_up(replicas)
            # what the library or the version of a server refuses stays so; a call that failed may succeed
            kind = WeightSyncError if isinstance(error, WeightSyncError) else WeightTransferError
            return {replica.url: kind(f"no {self.backend} group: {error}") for replica in replicas}
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
        self._abandon()

    def _open(self, replicas: Sequence[ControlPlane]) -> None:
        sizes = [
            int(replica.get("/get_world_size?include_dp=true", timeout=self._timeout)["world_size"])
            for replica in replicas
        ]
        address = self._address or on_the_way_to(replicas[0].url)
        port, world_size = _free_port(), 1 + sum(sizes)
        api = self._api_for(api_of(replicas[0]), self._chunk_bytes)
        group = self._group = CollectiveGroup(api, self._device, self.library)
        offset = 1
        calls: list[Future[Any]] = []
        for replica, size in zip(replicas, sizes, strict=True):
            body = {"init_info": api.worker_info(address, port, offset, world_size)}
            calls.append(self._call(replica, "/init_weight_transfer_engine", body))
            offset += size
        opened = group.open(address, port, world_size)
        done, _ = wait([opened, *calls], timeout=self._timeout, return_when=FIRST_EXCEPTION)
        for call in done:
            call.result()
        if opened not in done or len(done) <= len(calls):
            raise TimeoutError(f"not all of {world_size} members joined at {address}:{port} in {self._timeout:g} s")

    def _send_chunk(self, replicas: Sequence[ControlPlane], chunk: Chunk) -> dict[str, Exception]:
        assert self._group is not None
        body = update_body(self._group.api.update_info(chunk))
        calls = {replica.url: self._call(replica, "/update_weights", body) for replica in replicas}
        sent = self._group.send(chunk)
        done, pending = wait([sent, *calls.values()], timeout=self._timeout, return_when=FIRST_EXCEPTION)
        errors = {url: error for url, call in calls.items() if call in done and (error := call.exception())}
        problem = sent.exception() if sent in done else None
        if not pending and not errors and problem is None:
            return {}
        reason = problem or next(iter(errors.values()), None) or TimeoutError(f"no end after {self._timeout:g} s")
        return self._broken(replicas, {url: e for url, e in errors.items() if isinstance(e, Exception)}, reason)

    def _call(self, replica: ControlPlane, route: str, body: Mapping[str, Any]) -> Future[Any]:
        """A call that may hang with its server's workers, and must not keep this process from ending then."""
        return in_daemon_thread(lambda: replica.post(route, body, timeout=self._timeout), "ascent-weights")

    def _broken(
        self, replicas: Sequence[ControlPlane], errors: Mapping[str, Exception], reason: BaseException | None = None
    ) -> dict[str, Exception]:
        """The group has lost a member: no server has all weights."""
        self._abandon()
        _tell_given_up(replicas)
        why = f": {reason}" if reason else ""
        lost = WeightTransferError(f"the {self.backend} group lost a member, so nobody got all weights{why}")
        return {replica.url: errors.get(replica.url, lost) for replica in replicas}

    def _abandon(self) -> None:
        group, self._group, self._members = self._group, None, ()
        if group is not None:
            group.abandon()


def _tell_given_up(replicas: Sequence[ControlPlane]) -> None:
    """Tell servers that these weights won't come: workers that wait for them for ever are restarted by whoever watches
    them."""

    def tell(replica: ControlPlane) -> None:
        with contextlib.suppress(ServerCallError):  # the one that is gone
            replica.post(GIVE_UP, {}, timeout=_GIVE_UP_SECONDS)

    with ThreadPoolExecutor(max(1, len(replicas)), thread_name_prefix="ascent-weights") as pool:
        list(pool.map(tell, replicas))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
