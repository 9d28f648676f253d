"""The trainer's side of `ascent_http`: weights pulled over HTTP by the servers' hosts, in chunks, on any network.

One worker of each host fetches for all of that host; from four hosts on, hosts that have a chunk give it to others. The
trainer waits for each server by itself, so one that is lost is left out and nothing is built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from ascent.rollout.engine import WeightSyncError
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


class HttpTransport:
    """Two chunks of memory in turn: one is filled while the servers load the other. What listens is there only while
    weights are sent, and wants a token of that delivery, which servers learn over their guarded routes."""

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
        chunks = FilledChunks(walk, self._dtype, self._chunk_bytes, observe, _Buffer)
        loading = Loading(replicas, self._timeout)
        relays = len({_host(replica) for replica in replicas}) >= RELAYS_FROM
        offers = Offers(relays=relays, chunk_bytes=self._chunk_bytes)
        try:
            with _serving(replicas, self._address, offers) as told:
                for number, (buffer, slots) in enumerate(chunks):
                    chunk = _chunk(number, buffer, slots, digest=relays)
                    offers.offer(chunk)
                    piece = {"chunk": number, "size": chunk.size, "sha256": chunk.sha256, "tensors": described(slots)}
                    piece |= {"chunk_bytes": self._chunk_bytes, "relays": relays}
                    loading.start({url: info | piece for url, info in told.items()})
                loading.wait()
        except WeightSyncError:
            for _ in walk:  # other processes take part in the walk
                pass
            raise
        finally:
            offers.end()
            loading.close()
            chunks.close()
        return loading.failed

    def close(self) -> None:
        """See Transport."""


@contextlib.contextmanager
def _serving(
    replicas: Sequence[ControlPlane], address: str | None, offers: Offers
) -> Iterator[Mapping[str, dict[str, Any]]]:
    """Give chunks out inside. Yields what each server must know to fetch them, by its url."""
    token = secrets.token_hex(32)
    servers: dict[str, ChunkServer] = {}
    told: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        for replica in replicas:
            try:
                at = address or on_the_way_to(replica.url)
                if at not in servers:
                    servers[at] = ChunkServer(at, offers, token)
            except OSError as error:
                raise WeightSyncError(f"weights can't be given out to {replica.url} over HTTP: {error}") from error
            stack.callback(servers[at].close)
            told[replica.url] = {"source": servers[at].address, "token": token, "host": _host(replica)}
        stack.callback(offers.end)
        yield told


class _Buffer:
    """Memory that a socket can be filled from without a copy in this process."""

    def __init__(self, size: int) -> None:
        """Reserve so many bytes. Raises WeightSyncError where they aren't there."""
        self.size = size
        self._file = -1
        try:
            self._file = os.memfd_create("ascent-weights", os.MFD_CLOEXEC)
            os.posix_fallocate(self._file, 0, size)  # a write into a page that isn't there would kill the process
            self._map = mmap.mmap(self._file, size)
        except OSError as error:
            self.close()
            raise WeightSyncError(f"no {size / 2**20:.0f} MiB of memory for a chunk of weights: {error}") from error

    def tensor(self, slot: Slot) -> Tensor:
        """See Memory."""
        return tensor_at(self._map, slot)

    def memory(self, size: int) -> memoryview:
        """Its first bytes."""
        return memoryview(self._map)[:size]

    def fileno(self) -> int:
        """See HasFile."""
        return self._file

    def close(self) -> None:
        """See Memory."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _chunk(number: int, buffer: _Buffer, slots: Sequence[Slot], *, digest: bool) -> Chunk:
    size = slots[-1].offset + slots[-1].nbytes
    sha256 = hashlib.sha256(buffer.memory(size)).hexdigest() if digest else None
    return Chunk(number, buffer, size, sha256)


def _host(replica: ControlPlane) -> str:
    """By what name this trainer knows the machine of a server."""
    return urlsplit(replica.url).hostname or ""
