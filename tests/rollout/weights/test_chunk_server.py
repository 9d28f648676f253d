"""Who may fetch chunks, what a hostile or slow client can do, and relays that can't be trusted; no engine."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from ascent.rollout.in_vllm import chunk_server
from ascent.rollout.in_vllm.chunk_fetch import Fetcher, FetchError
from ascent.rollout.in_vllm.chunk_server import Chunk, ChunkServer, DeliveryOverError
from ascent.rollout.weights.transports.offers import Offers
from ascent.rollout.weights.transports.spread import TRAINER, Spread

TOKEN = "t" * 64


CONTENT = os.urandom(300_001)


def chunk(number: int, content: bytes = CONTENT, *, digest: bool = False) -> Chunk:
    return Chunk(number, memoryview(content), hashlib.sha256(content).hexdigest() if digest else None)


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[ChunkServer, Offers]]]:
    servers: list[ChunkServer] = []

    def begin(*, relays: bool = False) -> tuple[ChunkServer, Offers]:
        offers = Offers(relays=relays, chunk_bytes=1 << 20, kept=2)
        offers.offer(chunk(0, digest=relays))
        servers.append(ChunkServer("127.0.0.1", offers, TOKEN))
        return servers[-1], offers

    yield begin
    for server in servers:
        server.close()


def fetched(server: ChunkServer, number: int = 0, token: str = TOKEN) -> bytes:
    memory = bytearray()

    def reserve(size: int) -> memoryview:
        memory.extend(bytes(size - len(memory)))
        return memoryview(memory)[:size]

    fetcher = Fetcher(server.address, token)
    try:
        fetcher.fetch(number, reserve)
    finally:
        fetcher.close()
    return bytes(memory)


def raw(server: ChunkServer, request: bytes) -> bytes:
    """All that comes back for some bytes, until the connection is closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while got := connection.recv(1 << 16):
            answer += got
    return answer


def test_a_chunk_is_there_for_who_has_the_token(serve: Any) -> None:
    server, _ = serve()
    assert fetched(server) == CONTENT
    for token in ("", "t", TOKEN + "t", TOKEN.upper(), "Bearer " + TOKEN):
        with pytest.raises(FetchError, match="answers 401"):
            fetched(server, token=token)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GET /chunks/0 HTTP/1.1\r\n\r\n", b"401"),
        ("GET /chunks/0 HTTP/1.1\r\nAuthorization: Basic {token}\r\n\r\n", b"401"),
        ("GET /chunks/0 HTTP/1.1\r\nAuthorization: Bearer \xe4\r\n\r\n", b"401"),
        ("GET /chunks/0?token={token} HTTP/1.1\r\n\r\n", b"401"),
        ("GET /chunks/0/../../etc/passwd HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n", b"404"),
        ("GET /chunks/-1 HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n", b"404"),
        ("GET /chunks/0 HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 5\r\n\r\nGET /", b"404"),
        ("POST /chunks/0 HTTP/1.1\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n", b"404"),
        ("POST /chunks/0 HTTP/1.1\r\n\r\n", b"401"),
        ("DELETE /chunks/0 HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n", b"501"),
        ("GET /chunks/0 HTTP/1.1\r\n" + "X: y\r\n" * 500 + "\r\n", b"431"),
        ("GET /" + "a" * 100_000 + " HTTP/1.1\r\n\r\n", b"414"),
        ("\x00\x16\x03\x01 nonsense\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request_for_a_chunk_gets_none(serve: Any, request_: str, status: bytes) -> None:
    server, _ = serve()
    answer = raw(server, request_.format(token=TOKEN).encode("latin-1"))
    assert not answer or status in answer[:40]
    assert CONTENT[:100] not in answer
    assert answer.count(b"HTTP/1.1 ") <= 1, "nothing of a body is taken for a request"
    assert fetched(server) == CONTENT


def test_strangers_can_not_hold_a_delivery(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections, and one that says a letter at a time for ever."""
    monkeypatch.setattr(chunk_server, "_STRANGER_SECONDS", 1.0)
    before = threading.active_count()
    server, _ = serve()
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        began = time.monotonic()
        assert fetched(server) == CONTENT
        assert time.monotonic() - began < 3
        assert threading.active_count() - before < 80
        dribbling = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            dribble(dribbling)
        end = time.monotonic() + 5
        while threading.active_count() - before > 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert threading.active_count() - before <= 2, "strangers have had their time"
    finally:
        for each in idle:
            each.close()


def dribble(connection: socket.socket) -> None:
    for letter in b"GET /chunks/0 HTTP/1.1\r\n" + b"X" * 200:
        connection.send(bytes([letter]))
        time.sleep(0.05)


def test_a_client_that_does_not_take_its_bytes_is_cut_off(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_server, "_GRACE_SECONDS", 0.5)
    monkeypatch.setattr(chunk_server, "_SLOWEST", 1 << 30)
    server, offers = serve()
    large = bytes(64 << 20)
    offers.offer(chunk(1, large))
    slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    slow.request("GET", "/chunks/1", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = slow.getresponse()
    assert answer.read(100) == bytes(100)
    assert fetched(server, 1) == large, "others are unaffected"
    time.sleep(0.6)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()


def test_a_source_that_sends_too_slowly_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.rollout.in_vllm import chunk_fetch

    monkeypatch.setattr(chunk_fetch, "seconds_for", lambda size: 0.3)
    listening = socket.create_server(("127.0.0.1", 0))

    def trickle() -> None:
        while True:
            try:
                connection, _ = listening.accept()
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(200):
                    connection.sendall(b"x")
                    time.sleep(0.02)
            except OSError:
                if listening.fileno() < 0:
                    return

    threading.Thread(target=trickle, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(FetchError, match=r"ended after \d+ of 1000 bytes"):
        Fetcher(f"127.0.0.1:{listening.getsockname()[1]}", TOKEN).fetch(0, lambda size: memoryview(bytearray(size)))
    assert time.monotonic() - began < 5
    listening.close()


def test_no_name_server_is_asked(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none answers, each delivery would wait for it."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("looked up"))
    monkeypatch.setattr(socket, "gethostbyaddr", lambda *_: pytest.fail("looked up"))
    assert fetched(serve()[0]) == CONTENT


def test_a_chunk_is_waited_for_and_the_end_is_told(serve: Any) -> None:
    server, offers = serve()
    threading.Timer(0.2, lambda: offers.offer(chunk(1))).start()
    assert fetched(server, 1) == CONTENT
    threading.Timer(0.2, offers.end).start()
    with pytest.raises(DeliveryOverError):
        fetched(server, 2)


def test_only_the_newest_two_chunks_are_given_out(serve: Any) -> None:
    server, offers = serve()
    for number in range(1, 4):
        offers.offer(chunk(number))
    assert fetched(server, 2) == fetched(server, 3) == CONTENT
    with pytest.raises(DeliveryOverError):
        fetched(server, 1)


def test_nothing_is_served_once_it_is_closed(serve: Any) -> None:
    server, _ = serve()
    kept = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    began = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - began < 2
    with contextlib.suppress(ConnectionResetError):
        assert kept.recv(10) == b""
    with pytest.raises(FetchError, match="can't be reached"):
        fetched(server)


class Evil(BaseHTTPRequestHandler):
    """A relay that gives what it wants."""

    protocol_version = "HTTP/1.1"
    given, promised, asked = b"", 0, 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        self.send_header("Content-Length", str(self.promised))
        self.end_headers()
        self.wfile.write(self.given)
        self.close_connection = True

    def log_message(self, *args: Any) -> None: ...


WRONG_BIT = bytearray(CONTENT)
WRONG_BIT[77] ^= 1


@pytest.mark.parametrize(
    ("given", "promised"),
    [
        (bytes(WRONG_BIT), len(WRONG_BIT)),
        (CONTENT[:-1], len(CONTENT) - 1),
        (CONTENT + b"x", len(CONTENT) + 1),
        (CONTENT[:1000], len(CONTENT)),
        (CONTENT, 1 << 50),
    ],
    ids=["a bit", "shorter", "longer", "broken off", "endless"],
)
def test_a_poisoned_relay_is_refused_and_named_no_more(serve: Any, given: bytes, promised: int) -> None:
    server, offers = serve(relays=True)
    evil: Any = type("ThisEvil", (Evil,), {"given": given, "promised": promised})
    relay = HTTPServer(("127.0.0.1", 0), evil)
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    try:
        Fetcher(server.address, TOKEN).tell(0, relay.server_port)
        assert fetched(server) == CONTENT
        assert evil.asked == 1
        assert fetched(server) == CONTENT
        assert evil.asked == 1, "it is not asked again"
        assert offers.relayed == {f"127.0.0.1:{relay.server_port}"}
    finally:
        relay.shutdown()
        relay.server_close()


def test_a_relay_of_another_make_is_refused(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP/1.0: it closes its connections."""
    monkeypatch.setattr(Evil, "protocol_version", "HTTP/1.0")
    test_a_poisoned_relay_is_refused_and_named_no_more(serve, CONTENT, len(CONTENT))


def test_a_relay_that_is_gone_is_no_obstacle(serve: Any) -> None:
    server, _ = serve(relays=True)
    Fetcher(server.address, TOKEN).tell(0, 9)
    assert fetched(server) == CONTENT


@pytest.mark.parametrize("hosts", [1, 3, 4, 7, 8, 62, 500])
def test_relays_double_what_gives_a_chunk(hosts: int) -> None:
    spread = Spread(60.0)
    waiting = [("10.0.0.1", port) for port in range(hosts)]
    rounds = 0
    while waiting:
        rounds += 1
        given = [client for client in waiting if spread.source(0, client) is not None]
        for client in given:
            spread.ended(client)
            spread.holds(0, client, f"10.0.0.1:{client[1] + 1000}")
        waiting = [client for client in waiting if client not in given]
    assert rounds == math.ceil(math.log2(hosts + 1))


def test_a_source_that_does_not_come_to_an_end_is_free_again_after_a_while() -> None:
    spread = Spread(0.1)
    assert spread.source(0, ("a", 1)) == TRAINER
    assert spread.source(0, ("b", 1)) is None
    time.sleep(0.15)
    assert spread.source(0, ("b", 1)) == TRAINER
