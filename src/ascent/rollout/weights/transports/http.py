"""The trainer's side of `ascent_http`: weights pulled over HTTP by the servers' hosts, in chunks, on any network.

One worker of each host fetches for all of that host; from four hosts on, hosts that have a chunk give it to others. The
trainer waits for each server by itself, so one that is lost is left out and nothing is built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from ascent.rollout.engine import WeightSyncError, WeightTransferError
from ascent.rollout.in_vllm.chunk_server import Chunk, ChunkServer
from ascent.rollout.in_vllm.plugin import HTTP_BACKEND
from ascent.rollout.in_vllm.shared_memory import Slot, tensor_at
from ascent.rollout.weights.control import ControlPlane
from ascent.rollout.weights.transports.base import Named, Reach
from ascent.rollout.weights.transports.filling import DEFAULT_CHUNK_BYTES, FilledChunks, described
from ascent.rollout.weights.transports.loading import Loading
from ascent.rollout.weights.transports.offers import Offers
from ascent.rollout.weights.transports.own_address import on_the_way_to

if TYPE_CHECKING:
    from torch import Tensor

RELAYS_FROM = 4  # hosts; up to three are served as fast by the trainer alone
AHEAD = 3  # chunks in memory at both ends: one is loaded, one is on its way, one is filled


class HttpTransport:
    """What listens is there only while weights are sent, and wants a token of that delivery, which servers learn over
    their guarded routes."""

    backend: ClassVar[str] = HTTP_BACKEND
    reach: ClassVar[Reach] = Reach(
        "HTTP, by which servers on any machine fetch them",
        device_kinds=("cpu", "npu", "cuda"),
    )

    def __init__(
        self,
        dtype: str,
        device: str = "cpu",
        *,
        address: str | None = None,
        chunk_bytes: int | None = None,
        timeout: float = 300.0,
    ) -> None:
        """`address`: where to listen; None: at this machine's address on the way to each server."""
        del device  # weights of any device are copied
        self._dtype, self._address, self._timeout = dtype, address, timeout
        self._chunk_bytes = chunk_bytes or DEFAULT_CHUNK_BYTES

    def connect(self, replicas: Sequence[ControlPlane], incarnations: Mapping[str, str]) -> Mapping[str, Exception]:
        """See Transport; the engine has nothing to initialise."""
        return {}

    def send(
        self, replicas: Sequence[ControlPlane], tensors: Named, observe: Callable[[str, Tensor], None]
    ) -> Mapping[str, Exception]:
        """See Transport. Raises WeightSyncError when this process can't listen or has no memory, after the walk has
        ended."""
        walk = iter(tensors)
        chunks = FilledChunks(walk, self._dtype, self._chunk_bytes, observe, _Buffer, AHEAD)
        addresses, nowhere = _addresses(replicas, self._address)
        replicas = [replica for replica in replicas if replica.url in addresses]
        loading = Loading(replicas, self._timeout)
        relays = len({_host(replica) for replica in replicas}) >= RELAYS_FROM
        offers = Offers(relays=relays, chunk_bytes=self._chunk_bytes, kept=AHEAD)
        offered: deque[dict[str, Any]] = deque()  # and not loaded yet
        common = {"chunk_bytes": self._chunk_bytes, "ahead": AHEAD, "relays": relays}
        try:
            with _serving(replicas, addresses, offers) as told:
                for number, (buffer, slots) in enumerate(chunks):
                    chunk = _chunk(number, buffer, slots, digest=relays)
                    offers.offer(chunk)
                    piece = {"chunk": number, "size": chunk.size, "sha256": chunk.sha256, "tensors": described(slots)}
                    offered.append(common | piece)
                    if len(offered) > AHEAD - 2:  # the memory that is filled next is that of a chunk loaded everywhere
                        loading.start(_for_each(told, offered.popleft()))
                while offered:
                    loading.start(_for_each(told, offered.popleft()))
                loading.wait()
        except WeightSyncError:
            for _ in walk:  # other processes take part in the walk
                pass
            raise
        finally:
            offers.end()
            loading.close()
            chunks.close()
        return {**nowhere, **loading.failed}

    def close(self) -> None:
        """See Transport."""


def _addresses(replicas: Sequence[ControlPlane], given: str | None) -> tuple[dict[str, str], dict[str, Exception]]:
    """Where each server reaches this machine, by its url, and why one can't."""
    found: dict[str, str] = {}
    failed: dict[str, Exception] = {}
    for replica in replicas:
        try:
            found[replica.url] = given or on_the_way_to(replica.url)
        except OSError as error:
            failed[replica.url] = WeightTransferError(f"no way to the server's machine: {error}")
    return found, failed


@contextlib.contextmanager
def _serving(
    replicas: Sequence[ControlPlane], addresses: Mapping[str, str], offers: Offers
) -> Iterator[Mapping[str, dict[str, Any]]]:
    """Give chunks out inside. Yields what each server must know to fetch them, by its url."""
    token = secrets.token_hex(32)
    servers: dict[str, ChunkServer] = {}
    told: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        for replica in replicas:
            at = addresses[replica.url]
            try:
                if at not in servers:
                    servers[at] = ChunkServer(at, offers, token)
            except OSError as error:
                raise WeightSyncError(f"weights can't be given out to {replica.url} over HTTP: {error}") from error
            stack.callback(servers[at].close)
            told[replica.url] = {"source": servers[at].address, "token": token, "host": _host(replica)}
        stack.callback(offers.end)
        yield told


class _Buffer:
    """Memory of this process."""

    def __init__(self, size: int) -> None:
        """Reserve so many bytes. Raises WeightSyncError where they aren't there."""
        self.size = size
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._map.madvise(mmap.MADV_HUGEPAGE)  # taking small pages one by one costs more than writing them
        except OSError as error:
            raise WeightSyncError(f"no {size / 2**20:.0f} MiB of memory for a chunk of weights: {error}") from error

    def tensor(self, slot: Slot) -> Tensor:
        """See Memory."""
        return tensor_at(self._map, slot)

    def memory(self, size: int) -> memoryview:
        """Its first bytes."""
        return memoryview(self._map)[:size]

    def close(self) -> None:
        """See Memory. It is gone once nobody sends from it any more."""
        del self._map


def _for_each(told: Mapping[str, dict[str, Any]], piece: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {url: info | piece for url, info in told.items()}


def _chunk(number: int, buffer: _Buffer, slots: Sequence[Slot], *, digest: bool) -> Chunk:
    size = slots[-1].offset + slots[-1].nbytes
    memory = buffer.memory(size)
    return Chunk(number, memory, hashlib.sha256(memory).hexdigest() if digest else None)


def _host(replica: ControlPlane) -> str:
    """By what name this trainer knows the machine of a server."""
    return urlsplit(replica.url).hostname or ""
