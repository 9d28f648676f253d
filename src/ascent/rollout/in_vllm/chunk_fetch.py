"""Gets chunks of one delivery from the trainer, or from the host that it names, into memory of this process.

The trainer's address comes over the server's guarded routes, so its answers are believed. A relay is another server's
host: what it gives must have the size and the SHA-256 that the trainer's answer names, or it is asked for nothing more.

Loaded inside vLLM's processes: the standard library only.
"""

from __future__ import annotations

import hashlib
import http.client
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from ascent.rollout.in_vllm.chunk_server import (
    DIGEST_HEADER,
    FAILED_HEADER,
    PORT_HEADER,
    SIZE_HEADER,
    DeliveryOverError,
    cut,
    cut_off_after,
    seconds_for,
)

_ANSWER_SECONDS = 45.0  # the trainer says "ask again" after 20
_TRIES, _TRY_AGAIN_SECONDS = 3, 0.2
_PIECE = 4 * 2**20  # bytes that are asked for at once
Memory = Callable[[int], memoryview]  # reserves so many bytes, to be written


class FetchError(RuntimeError):
    """A chunk could not be fetched."""


class _BrokenOffError(OSError):
    """A connection ended before all bytes were there."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A chunk that lies in memory; its digest was checked where there is one."""

    size: int
    sha256: str | None


class Fetcher:
    """Used by one thread. `source` is the trainer's `HOST:PORT`."""

    def __init__(self, source: str, token: str) -> None:
        self.own_address = ""  # this host's, on the way to the trainer; once something was asked
        self._source, self._token = source, token
        self._connection = _connection(source)
        self._ended = False

    def fetch(self, number: int, memory: Memory) -> Fetched:
        """A chunk, as soon as the trainer has it. Raises DeliveryOverError when there is no such chunk any more,
        FetchError when it can't be had; what `memory` raises is passed on."""
        failed: list[str] = []
        broken = 0
        while True:
            answer = self._ask("GET", number, {FAILED_HEADER: " ".join(failed)} if failed else {})
            if answer.status == HTTPStatus.OK:
                try:
                    return _body(answer, self._connection, _length(answer, "Content-Length"), _sha256(answer), memory)
                except (OSError, http.client.HTTPException) as error:
                    self._connection.close()
                    broken += 1
                    if broken == _TRIES:
                        raise FetchError(f"chunk {number} from the trainer at {self._source}: {error}") from error
                    continue
            answer.read()
            if answer.status == HTTPStatus.TEMPORARY_REDIRECT:
                relay = urlsplit(answer.headers.get("Location", "")).netloc
                try:
                    return self._from_relay(relay, number, _length(answer, SIZE_HEADER), _sha256(answer), memory)
                except (OSError, http.client.HTTPException, FetchError, DeliveryOverError):
                    failed.append(relay)  # the trainer is told, and names another or gives it itself
            elif answer.status != HTTPStatus.NO_CONTENT:
                raise FetchError(f"chunk {number}: the trainer at {self._source} answers {answer.status}")

    def tell(self, number: int, port: int) -> None:
        """Tell the trainer that this host has a chunk, verified, and gives it out at `port`."""
        self._ask("POST", number, {PORT_HEADER: str(port)}).read()

    def close(self) -> None:
        """Close the connection, once nothing is fetched any more."""
        self._connection.close()

    def break_off(self) -> None:
        """From another thread: what is being fetched fails soon."""
        self._ended = True
        if (sock := self._connection.sock) is not None:
            cut(sock)

    def _ask(self, method: str, number: int, headers: dict[str, str]) -> http.client.HTTPResponse:
        """The trainer's answer. A kept connection may have been closed meanwhile, so a failed one is tried again."""
        for rest in reversed(range(_TRIES)):
            try:
                if self._connection.sock is None:
                    self._connect()
                return _asked(self._connection, self._token, method, number, headers)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if not rest or self._ended:
                    raise FetchError(
                        f"the trainer at {self._source} can't be reached from this server: "
                        f"{error or type(error).__name__}. If it has several network interfaces, name the one that "
                        "servers reach: cluster.interface"
                    ) from error
                time.sleep(_TRY_AGAIN_SECONDS)
        raise AssertionError

    def _connect(self) -> None:
        if self._ended:
            raise FetchError("broken off")
        self._connection.connect()
        opened: Any = self._connection.sock
        self.own_address = str(opened.getsockname()[0])

    def _from_relay(self, relay: str, number: int, size: int, sha256: str | None, memory: Memory) -> Fetched:
        if sha256 is None:
            raise FetchError(f"relay {relay}: the trainer named no digest of chunk {number}")
        connection = _connection(relay)
        try:
            answer = _asked(connection, self._token, "GET", number, {})
            if answer.status != HTTPStatus.OK or _length(answer, "Content-Length") != size:
                raise FetchError(f"relay {relay} answers {answer.status} to chunk {number}")
            return _body(answer, connection, size, sha256, memory)
        finally:
            connection.close()


def _connection(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(f"//{address}")
    if not parts.hostname or not parts.port:
        raise FetchError(f"not an address of chunks: {address!r:.80}")
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_ANSWER_SECONDS)


def _asked(
    connection: http.client.HTTPConnection, token: str, method: str, number: int, headers: dict[str, str]
) -> http.client.HTTPResponse:
    connection.request(method, f"/chunks/{number}", headers={"Authorization": f"Bearer {token}", **headers})
    answer = connection.getresponse()
    if answer.status == HTTPStatus.GONE:
        answer.read()
        raise DeliveryOverError(f"chunk {number}: the delivery is over")
    return answer


def _body(
    answer: http.client.HTTPResponse,
    connection: http.client.HTTPConnection,
    size: int,
    sha256: str | None,
    memory: Memory,
) -> Fetched:
    """The bytes of an answer, into memory. Raises OSError for a connection that breaks, and for other bytes than those
    that were promised."""
    if connection.sock is None:
        raise _BrokenOffError("it doesn't keep its connections, so nothing could end one that is too slow")
    view = memory(size)
    with cut_off_after(seconds_for(size), connection.sock):
        at = 0
        while at < size:
            got = answer.readinto(view[at : min(at + _PIECE, size)])
            if not got:
                raise _BrokenOffError(f"the connection ended after {at} of {size} bytes")
            at += got
    if sha256 is not None and not secrets.compare_digest(hashlib.sha256(view).hexdigest(), sha256):
        raise _BrokenOffError("the bytes are not those that were promised (SHA-256)")
    if size == 0:
        answer.read()
    return Fetched(size, sha256)


def _length(answer: http.client.HTTPResponse, header: str) -> int:
    text = answer.headers.get(header, "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise FetchError(f"{header}: {text!r:.40} is not a count of bytes")
    return int(text)


def _sha256(answer: http.client.HTTPResponse) -> str | None:
    found: str | None = answer.headers.get(DIGEST_HEADER)
    return found
