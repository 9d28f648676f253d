"""The trainer's chunks of one delivery, as its servers' hosts ask for them."""

from __future__ import annotations

import threading

from ascent.rollout.in_vllm.chunk_server import Asked, Chunk, DeliveryOverError, Elsewhere, seconds_for
from ascent.rollout.weights.transports.spread import TRAINER, Client, Spread

_ASK_AGAIN_SECONDS = 20.0


class Offers:
    """A Shelf. Chunks are offered in their order; the newest are there, the others have been loaded everywhere."""

    def __init__(self, *, relays: bool, chunk_bytes: int, kept: int) -> None:
        """With `relays`, hosts that have a chunk give it to others. `kept`: how many of the newest are there."""
        self._kept = kept
        self.bytes_sent = 0  # by the trainer itself
        self.relayed: set[str] = set()  # the relays that were named
        self._spread = Spread(seconds_for(chunk_bytes)) if relays else None
        self._chunks: dict[int, Chunk] = {}
        self._ended = False
        self._news = threading.Condition()

    def offer(self, chunk: Chunk) -> None:
        """From now on it can be asked for, and the one `kept` before it no more."""
        with self._news:
            self._chunks.pop(chunk.number - self._kept, None)
            if self._spread is not None:
                self._spread.forget(chunk.number - self._kept)
            self._chunks[chunk.number] = chunk
            self._news.notify_all()

    def end(self) -> None:
        """There is no further chunk."""
        with self._news:
            self._ended = True
            self._chunks.clear()
            self._news.notify_all()

    def find(self, asked: Asked) -> Chunk | Elsewhere | None:
        """See Shelf."""
        with self._news:
            if self._spread is not None and asked.failed:
                self._spread.failed(asked.client, asked.failed)
            source: str | None = None

            def known() -> bool:
                nonlocal source
                source = self._source(asked)
                return source is not None or self._ended or asked.number < min(self._chunks, default=0)

            self._news.wait_for(known, _ASK_AGAIN_SECONDS)
            chunk = self._chunks.get(asked.number)
            if source is None or chunk is None:
                if self._ended or asked.number < min(self._chunks, default=0):
                    raise DeliveryOverError
                return None
            if source != TRAINER:
                self.relayed.add(source)
                return Elsewhere(source, chunk)
            self.bytes_sent += chunk.size
            return chunk

    def sent(self, asked: Asked) -> None:
        """See Shelf."""
        if self._spread is not None:
            with self._news:
                self._spread.ended(asked.client)
                self._news.notify_all()

    def has(self, number: int, client: Client, relay: str | None) -> None:
        """See Shelf."""
        if self._spread is not None and relay is not None:
            with self._news:
                self._spread.holds(number, client, relay)
                self._news.notify_all()

    def _source(self, asked: Asked) -> str | None:
        if asked.number not in self._chunks:
            return None
        return TRAINER if self._spread is None else self._spread.source(asked.number, asked.client)
