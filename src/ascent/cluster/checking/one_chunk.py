"""One chunk from node to node, in the way in which new weights go between machines without a common collective."""

from __future__ import annotations

import hashlib
import os
import secrets
import time

from ascent.rollout.in_vllm.chunk_fetch import Fetcher, FetchError
from ascent.rollout.in_vllm.chunk_server import Chunk, ChunkServer, DeliveryOverError
from ascent.rollout.weights.transports.filling import DEFAULT_CHUNK_BYTES
from ascent.rollout.weights.transports.offers import Offers


class Giver:
    """Gives out one chunk of random bytes, until it is closed."""

    def __init__(self, address: str) -> None:
        self._content = bytearray(os.urandom(DEFAULT_CHUNK_BYTES))
        self.sha256, self.token = hashlib.sha256(self._content).hexdigest(), secrets.token_hex(32)
        self._offers = Offers(relays=False, chunk_bytes=DEFAULT_CHUNK_BYTES, kept=1)
        self._offers.offer(Chunk(0, memoryview(self._content), None))
        self._server = ChunkServer(address, self._offers, self.token)
        self.source = self._server.address

    def close(self) -> None:
        """Give out no more."""
        self._offers.end()
        self._server.close()


def take(source: str, token: str) -> tuple[str, float]:
    """The chunk's SHA-256 and the seconds that it took. Raises OSError where it can't be had."""
    held = bytearray(DEFAULT_CHUNK_BYTES)

    fetcher = Fetcher(source, token)
    began = time.perf_counter()
    try:
        fetcher.fetch(0, lambda size: memoryview(held)[:size])
        return hashlib.sha256(held).hexdigest(), time.perf_counter() - began
    except (FetchError, DeliveryOverError) as error:
        raise OSError(str(error)) from error
    finally:
        fetcher.close()
