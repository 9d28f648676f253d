"""Gives out chunks of weights over HTTP: the trainer's own, and what a host that has them relays to others.

    GET  /chunks/3    200 and the bytes; 307 and the address of a host that has them; 204 when it isn't there yet (ask
                      again); 410 when this delivery is over
    POST /chunks/3    this host has it too, and gives it out at the port of X-Ascent-Port

Every request needs the delivery's token. A client without it has 5 seconds, and there are at most 64 of them at once:
one more, and the oldest is cut off. A client that takes its bytes too slowly is cut off too (`seconds_for`).

Loaded inside vLLM's processes: the standard library only.
"""

from __future__ import annotations

import contextlib
import http.server
import re
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

DIGEST_HEADER = "X-Ascent-SHA256"
SIZE_HEADER = "X-Ascent-Size"
FAILED_HEADER = "X-Ascent-Failed"  # the relays that did not give this chunk, with spaces between
PORT_HEADER = "X-Ascent-Port"  # where this host gives out what it has
_PATH = re.compile(r"/chunks/(\d{1,9})")
_STRANGERS, _STRANGER_SECONDS = 64, 5.0
_LOOK_SECONDS = 0.05  # between two looks at what has had its time
_IDLE_SECONDS = 60.0  # of a client that has the token
_GRACE_SECONDS, _SLOWEST = 30.0, 2**20  # bytes a second


class DeliveryOverError(RuntimeError):
    """There is no such chunk any more, and no further one."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is given out. `sha256` (64 hexadecimal digits) is None where nobody relays it."""

    number: int
    memory: memoryview  # its bytes
    sha256: str | None

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.memory)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a chunk. `client`: address and port of its connection."""

    number: int
    client: tuple[str, int]
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A relay, `HOST:PORT`, that has the chunk; size and digest are of the chunk as it must be."""

    address: str
    chunk: Chunk


class Shelf(Protocol):
    """What a ChunkServer gives out. Called in many threads."""

    def find(self, asked: Asked) -> Chunk | Elsewhere | None:
        """The chunk, or who has it; None for "ask again". May wait some seconds. Raises DeliveryOverError."""
        ...

    def sent(self, asked: Asked) -> None:
        """The chunk that `find` gave has been sent, or could not be."""
        ...

    def has(self, number: int, client: tuple[str, int], relay: str | None) -> None:
        """A client has this chunk, verified; `relay` is where it gives it out."""
        ...


class ChunkServer:
    """Serves until it is closed, in threads that end with the process."""

    def __init__(self, host: str, shelf: Shelf, token: str) -> None:
        """Listen at an address of this machine, on a free port. Raises OSError where that can't be."""
        self._server = _server_class(host)((host, 0), shelf, token)
        self.port = int(self._server.server_address[1])
        self.address = joined(host, self.port)
        threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS,), name="ascent-chunks", daemon=True
        ).start()

    def close(self) -> None:
        """Serve no more; connections are closed. Safe to call twice."""
        self._server.end()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads, block_on_close, request_queue_size = True, False, 128

    def __init__(self, address: tuple[str, int], shelf: Shelf, token: str) -> None:
        self.shelf, self.token = shelf, token.encode()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._strangers: dict[socket.socket, float] = {}  # since when, the oldest first
        self._ended = False
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the look-up of this host's name that HTTPServer makes: where name servers don't answer it takes
        half a minute, and nobody needs it."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
            if len(self._strangers) >= _STRANGERS:
                self._cut_stranger(next(iter(self._strangers)))
            self._strangers[request] = time.monotonic()
        super().process_request(request, client_address)

    def known(self, request: socket.socket) -> None:
        """This connection's client has the token."""
        with self._lock:
            self._strangers.pop(request, None)

    def service_actions(self) -> None:
        """Called every few moments: strangers have had their time."""
        until = time.monotonic() - _STRANGER_SECONDS
        with self._lock:
            for request in [each for each, since in self._strangers.items() if since < until]:
                self._cut_stranger(request)

    def _cut_stranger(self, request: socket.socket) -> None:
        del self._strangers[request]
        cut(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
            self._strangers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away says so itself, where it matters."""

    def end(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self.shutdown()
        self.server_close()
        with self._lock:
            for request in self._open:
                cut(request)


def _server_class(host: str) -> type[_Server]:
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    return type("_ServerOfFamily", (_Server,), {"address_family": family})


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    error_message_format = ""  # what is no request gets its status alone
    timeout = _IDLE_SECONDS
    server: _Server

    def do_GET(self) -> None:
        number = self._number()
        if number is None:
            return
        failed = tuple(self.headers.get(FAILED_HEADER, "").split())
        asked = Asked(number, self.client_address[:2], failed)
        try:
            found = self.server.shelf.find(asked)
        except DeliveryOverError:
            return self._answer(HTTPStatus.GONE)
        if found is None:
            return self._answer(HTTPStatus.NO_CONTENT)
        if isinstance(found, Elsewhere):
            to = {"Location": f"http://{found.address}{self.path}", SIZE_HEADER: str(found.chunk.size)}
            return self._answer(HTTPStatus.TEMPORARY_REDIRECT, to | _digest(found.chunk))
        try:
            self._send(found)
        finally:
            self.server.shelf.sent(asked)

    def do_POST(self) -> None:
        number = self._number()
        if number is None:
            return
        port = self.headers.get(PORT_HEADER, "")
        host = self.client_address[0]
        relay = joined(host, int(port)) if re.fullmatch(r"\d{1,5}", port) else None
        self.server.shelf.has(number, self.client_address[:2], relay)
        self._answer(HTTPStatus.NO_CONTENT)

    def _number(self) -> int | None:
        """The chunk that is asked for; None when the request was refused."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode("latin-1")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given, self.server.token):
            self.close_connection = True
            self._answer(HTTPStatus.UNAUTHORIZED)
            return None
        self.server.known(self.connection)
        found = _PATH.fullmatch(self.path)
        if found is None or self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body that nobody reads would be taken for the next request
            self._answer(HTTPStatus.NOT_FOUND)
            return None
        return int(found[1])

    def _send(self, chunk: Chunk) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(chunk.size))
        for name, value in _digest(chunk).items():
            self.send_header(name, value)
        self.connection.settimeout(None)  # of a single piece; all of them have their time together
        with cut_off_after(seconds_for(chunk.size), self.connection):
            self.end_headers()
            self.connection.sendall(chunk.memory)
        self.connection.settimeout(self.timeout)

    def _answer(self, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", "0")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def version_string(self) -> str:
        """Nothing about this program, for strangers."""
        return "chunks"

    def log_message(self, format: str, *args: Any) -> None:
        """What fails is told by who asked."""


def seconds_for(size: int) -> float:
    """How long so many bytes may take: half a minute, and a second for each MiB."""
    return _GRACE_SECONDS + size / _SLOWEST


@contextlib.contextmanager
def cut_off_after(seconds: float, connection: socket.socket) -> Iterator[None]:
    """End a connection that isn't done in time, however little it has still been sending."""
    timer = threading.Timer(seconds, cut, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def cut(connection: socket.socket) -> None:
    """End a connection from another thread than the one that uses it."""
    with contextlib.suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)


def joined(host: str, port: int) -> str:
    """`HOST:PORT`, as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _digest(chunk: Chunk) -> dict[str, str]:
    return {} if chunk.sha256 is None else {DIGEST_HEADER: chunk.sha256}
