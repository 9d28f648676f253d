"""One fetch a host: the worker that is first fetches a delivery's chunks into shared memory, the others map them.

All workers of all servers that the trainer reaches under one host name take part. Whoever gets the lock is the fetcher
(`Role`); when it fails or dies the next one goes on from the chunk that it needs. Some segments are used in turn, so
the next chunks are on their way while one is loaded. With two:

    trainer     load 0        load 1 (all have loaded 0)     load 2                   the end
    fetcher     gets 0, 1     gets 2 where 0 lay             asks for 3               is told: over; gives all back
    the others  map 0         map 1                          map 2

Loaded inside vLLM's processes: the standard library and torch only.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from dataclasses import dataclass

from ascent.rollout.in_vllm.chunk_fetch import Fetched, Fetcher, FetchError
from ascent.rollout.in_vllm.chunk_server import Asked, Chunk, ChunkServer, DeliveryOverError
from ascent.rollout.in_vllm.owned_segments import Role, Segment, remove_stale
from ascent.rollout.in_vllm.shared_memory import FOLDER, PREFIX, OpenedSegment, SegmentError

_LOOK_SECONDS = 0.002
_END_SECONDS = 2.0
_FORGOTTEN_SECONDS = 900.0  # without a further chunk: the trainer has left this worker's server out
PATIENCE_SECONDS = 20.0  # for a chunk that another worker of this host fetches: it may be stopped, or its server hang


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the trainer tells of one delivery to the servers that it reaches under the name `host`."""

    source: str  # the trainer's HOST:PORT
    token: str
    host: str
    chunk_bytes: int  # so long are chunks, or longer where one tensor is
    ahead: int  # how many are in memory at once: the one that is loaded, and those that are fetched meanwhile
    relays: bool  # hosts give what they have to others

    def name(self, what: object) -> str:
        """The name of a file of this delivery and host; nobody can guess it who hasn't the token."""
        return PREFIX + hashlib.sha256(f"{self.token}/{self.host}/{what}".encode()).hexdigest()[:32]


class HostChunks:
    """A worker's way to the chunks of one delivery. Used by one thread, for one chunk after the other."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._fetching: _Fetching | None = None
        self._waits_no_more = False

    def take(self, number: int, size: int, sha256: str | None) -> OpenedSegment:
        """A chunk, mapped. Raises FetchError when it can't be had, or isn't what `size` and `sha256` say; SegmentError
        when there is no shared memory."""
        name, began = self._delivery.name(number), time.monotonic()
        while True:
            if self._fetching is None and not (FOLDER / name).exists():
                self._become_fetcher(number)
            if self._fetching is not None:
                self._fetching.wait_for(number, size, sha256)
            if (opened := _opened(name)) is not None:
                return opened
            if self._waits_no_more or time.monotonic() - began > PATIENCE_SECONDS:
                self._waits_no_more = True
                return self._alone(number, size, sha256)
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Let go of memory and connections, as far as this worker has them."""
        if self._fetching is not None:
            self._fetching.end()
            self._fetching = None

    def _become_fetcher(self, number: int) -> None:
        role = Role.take(self._delivery.name("fetcher"))
        if role is None:
            return
        try:
            remove_stale()
            self._fetching = _Fetching(self._delivery, role, number)
        except BaseException:
            role.free()
            raise

    def _alone(self, number: int, size: int, sha256: str | None) -> OpenedSegment:
        """Fetch it for this worker alone: the one that fetches for all has been taking too long."""
        fetcher = Fetcher(self._delivery.source, self._delivery.token)
        with contextlib.ExitStack() as stack:
            stack.callback(fetcher.close)
            segment = Segment(size)
            stack.callback(segment.close)  # what is mapped stays
            try:
                _check(number, fetcher.fetch(number, segment.memory), size, sha256)
            except DeliveryOverError as error:
                raise FetchError(str(error)) from error
            return OpenedSegment(segment.name)


class _Fetching:
    """The fetcher's thread. It always asks for the next chunk; that there is none any more is its end."""

    def __init__(self, delivery: Delivery, role: Role, first: int) -> None:
        self._delivery, self._role = delivery, role
        self._fetcher = Fetcher(delivery.source, delivery.token)
        self._segments: list[Segment | None] = [None] * delivery.ahead
        self._relay: ChunkServer | None = None
        self._shelf = _HostShelf()
        self._news = threading.Condition()
        self._wanted = first  # the newest chunk that this worker was told to load
        self._fetched: dict[int, Fetched] = {}
        self._failure: Exception | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(first,), name="ascent-fetch", daemon=True)
        self._thread.start()

    def wait_for(self, number: int, size: int, sha256: str | None) -> None:
        """Until a chunk is there. Raises what has kept it from coming."""
        with self._news:
            self._wanted = number
            self._news.notify_all()
            self._news.wait_for(lambda: self._failure is not None or number in self._fetched)
            if number not in self._fetched:
                assert self._failure is not None
                raise FetchError(f"chunk {number}: {self._failure}") from self._failure
            _check(number, self._fetched[number], size, sha256)

    def end(self) -> None:
        """Fetch no more; what is on its way is broken off."""
        with self._news:
            self._ended = True
            self._news.notify_all()
        self._fetcher.break_off()
        self._thread.join(_END_SECONDS)

    def _run(self, number: int) -> None:
        failure: Exception = DeliveryOverError("the delivery is over")
        try:
            while self._may_fetch(number):
                self._fetch(number)
                number += 1
        except Exception as error:  # noqa: BLE001  # raised where the chunk is waited for
            failure = error
        finally:
            self._give_back(failure)

    def _may_fetch(self, number: int) -> bool:
        """Wait until a segment is free: all servers have loaded a chunk when the one after it is wanted."""
        with self._news:
            wanted = self._news.wait_for(
                lambda: self._ended or self._wanted > number - self._delivery.ahead, _FORGOTTEN_SECONDS
            )
            return wanted and not self._ended

    def _fetch(self, number: int) -> None:
        place = number % self._delivery.ahead
        if (old := self._segments[place]) is not None:
            self._shelf.remove(number - self._delivery.ahead)
            old.withdraw()

        def memory(size: int) -> memoryview:
            segment = self._segments[place]
            if segment is None or segment.size < size:
                if segment is not None:
                    segment.close()
                    self._segments[place] = None
                segment = self._segments[place] = Segment(max(size, self._delivery.chunk_bytes))
            return segment.memory(size)

        fetched = self._fetcher.fetch(number, memory)
        segment = self._segments[place]
        assert segment is not None
        segment.publish(self._delivery.name(number))
        with self._news:
            self._fetched = {each: what for each, what in self._fetched.items() if each > number - self._delivery.ahead}
            self._fetched[number] = fetched
            self._news.notify_all()
        if self._delivery.relays:
            self._give_out(Chunk(number, segment.memory(fetched.size), fetched.sha256))

    def _give_out(self, chunk: Chunk) -> None:
        """To other hosts; its digest has been checked."""
        if self._relay is None:
            self._relay = ChunkServer(self._fetcher.own_address, self._shelf, self._delivery.token)
        self._shelf.add(chunk)
        self._fetcher.tell(chunk.number, self._relay.port)

    def _give_back(self, failure: Exception) -> None:
        with self._news:
            self._failure = failure
            self._news.notify_all()
        if self._relay is not None:
            self._relay.close()
        self._fetcher.close()
        for segment in self._segments:
            if segment is not None:
                segment.close()
        self._role.free()


class _HostShelf:
    """What this host has fetched and may give out."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}

    def add(self, chunk: Chunk) -> None:
        self._chunks[chunk.number] = chunk

    def remove(self, number: int) -> None:
        self._chunks.pop(number, None)

    def find(self, asked: Asked) -> Chunk:
        """See Shelf."""
        chunk = self._chunks.get(asked.number)
        if chunk is None:
            raise DeliveryOverError
        return chunk

    def sent(self, asked: Asked) -> None:
        """See Shelf."""

    def has(self, number: int, client: tuple[str, int], relay: str | None) -> None:
        """See Shelf; only the trainer keeps account."""


def _opened(name: str) -> OpenedSegment | None:
    """The segment of this name; None where there is none, or no more."""
    try:
        return OpenedSegment(name) if (FOLDER / name).exists() else None
    except SegmentError:
        if (FOLDER / name).exists():
            raise
        return None


def _check(number: int, fetched: Fetched, size: int, sha256: str | None) -> None:
    if (fetched.size, fetched.sha256) != (size, sha256):
        raise FetchError(f"chunk {number} has {fetched.size} bytes, and {size} were promised, or another digest")
