"""The gateway: as the supervisor starts it, over stand-ins in processes of their own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("uvicorn")

from tests.rollout.test_service_client import wait_for
from tests.rollout.test_service_scale import TOKEN, StandingService, standing

from ascent.rollout.service import gateway
from ascent.rollout.service.gateway import Backend, Gateway
from ascent.rollout.service.prefixes import PrefixMemory, blocks_of
from ascent.rollout.service.scaling import scale_service

__all__ = ["standing"]
BEARER = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


def call(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] = BEARER
) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, raw, headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def complete(url: str, prompt: Any, **more: Any) -> int:
    """The port of the replica that answered."""
    status, _, content = call(url, "POST", "/v1/completions", {"model": "m", "prompt": prompt, **more})
    assert status == 200, content
    return int(json.loads(content)["port"])


def url_of(service: StandingService) -> str:
    found = service.record.gateway
    assert found is not None
    return found.url


def knows(url: str, replicas: int) -> None:
    """Wait until the gateway has seen so many."""
    wait_for(lambda: json.loads(call(url, "GET", "/health")[2])["replicas"] == replicas)


def test_one_address_for_all_replicas(standing: Callable[..., StandingService]) -> None:
    service = standing(replicas=2, gateway=0)
    url, ports = url_of(service), [urlsplit(replica.url).port for replica in service.record.replicas]

    assert complete(url, "at once") in ports, "a service that is ready has a gateway that is"
    knows(url, 2)

    # who is let in, and where to
    other = {**BEARER, "Authorization": "Bearer other"}
    for headers in ({}, other, {**BEARER, "Authorization": TOKEN}, {**BEARER, "Authorization": "Bearer \xe9"}):
        assert call(url, "POST", "/v1/completions", {"prompt": "x"}, headers)[0] == 401
    assert call(url, "GET", "/health", headers={})[0] == 200
    for method, path in (
        ("POST", "/ascent/hold"),
        ("POST", "/update_weights"),
        ("POST", "/collective_rpc"),
        ("POST", "/inference/v1/generate"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/completions/../../sleep"),
        ("POST", "/v1/%2e%2e/sleep"),
        ("POST", "//v1/completions"),
        ("GET", "/metrics"),
        ("DELETE", "/v1/completions"),
    ):
        assert call(url, method, path, {} if method == "POST" else None)[0] == 404, path
    status, _, content = call(
        url, "POST", "/v1/completions?x=1", {"prompt": "x"}, {**BEARER, "x-ascent-hold": "h", "x-ascent-weights": "1"}
    )
    assert status == 200
    assert not [name for name in json.loads(content)["headers"] if name.startswith("x-ascent")]

    # where the beginning was seen
    stories = [f"story {number}: " + "once upon a time " * 40 for number in range(6)]
    first = [complete(url, story) for story in stories]
    assert [complete(url, story + " and more") for story in stories] == first
    with ThreadPoolExecutor(8) as pool:
        load = Counter(pool.map(lambda n: complete(url, f"other {n}", seconds=0.5), range(4)))
    assert set(load) == set(ports), "both are used"

    # more than both may have (2 * max_num_seqs each)
    with ThreadPoolExecutor(16) as pool:
        body = {"prompt": "x", "seconds": 1.0}
        answers = list(pool.map(lambda _: call(url, "POST", "/v1/completions", body), range(12)))
    statuses = Counter(status for status, _, _ in answers)
    assert statuses == {200: 8, 429: 4}
    assert all(headers["retry-after"] == "1" for status, headers, _ in answers if status == 429)
    large = b'{"prompt": "' + b"x" * 9 * 2**20 + b'"}'
    assert call(url, "POST", "/v1/completions", large)[0] == 413
    assert all(each["busy"] == 0 for each in json.loads(call(url, "GET", "/ascent/status")[2])["replicas"])

    # the first event comes while the replica still samples
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    began = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "stream": True, "seconds": 3.0}), BEARER)
    answer = connection.getresponse()
    assert answer.readline() == b"data: first\n"
    assert time.monotonic() - began < 2.0
    assert answer.getheader("content-type") == "text/event-stream"
    assert b"data: " in answer.read()
    connection.close()


def test_what_dies_is_left_out_and_comes_back(standing: Callable[..., StandingService]) -> None:
    service = standing(replicas=2, gateway=0)
    url, [first, second] = url_of(service), service.record.replicas
    knows(url, 2)
    os.kill(first.pid or 0, signal.SIGSTOP)  # a request reaches it, and no answer comes before it dies
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(complete, url, f"prompt {number}", seconds=0.2) for number in range(4)]
        time.sleep(0.3)
        os.kill(first.pid or 0, signal.SIGKILL)
        assert {each.result() for each in running} == {urlsplit(second.url).port}
    wait_for(lambda: [replica.restarts for replica in service.record.replicas] == [1, 0])
    knows(url, 2)

    # an answer that had begun breaks off for the client too
    connection = http.client.HTTPConnection(urlsplit(url).hostname or "", urlsplit(url).port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "stream": True, "seconds": 60}), BEARER)
    answer = connection.getresponse()
    assert answer.readline() == b"data: first\n"
    for replica in service.record.replicas:
        os.kill(replica.pid or 0, signal.SIGKILL)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    connection.close()
    call(url, "POST", "/v1/completions", {"prompt": "x"})  # finds it out, if the gateway hasn't yet
    status, headers, _ = call(url, "POST", "/v1/completions", {"prompt": "x"})
    assert status == 503
    assert headers["retry-after"] == "1"
    knows(url, 2)

    # the gateway itself, and another number of replicas
    killed = service.record.gateway
    assert killed is not None
    os.kill(killed.pid or 0, signal.SIGKILL)

    def back() -> bool:
        now = service.record.gateway
        return now is not None and now.state == "ready" and now.pid != killed.pid

    wait_for(back)
    assert url_of(service) == url
    scale_service("stand", 1)
    knows(url, 1)
    assert complete(url, "x") == urlsplit(first.url).port
    service.pids.add(killed.pid or 0)


def test_a_replica_with_other_weights_is_spared_and_so_is_a_busy_one(tmp_path: Any) -> None:
    made = Gateway(tmp_path, TOKEN)
    made._most = 10
    a, b, c = (Backend(f"http://{name}", up=True) for name in "abc")
    made._backends = {each.url: each for each in (a, b, c)}
    a.version = b.version = 3
    assert made._usable(None) == [a, b], "c has the checkpoint's weights"
    assert made._usable(a) == [b]
    blocks = blocks_of({"model": "m", "prompt": "x" * 600})
    made._prefixes.note(blocks, a.url)
    a.busy = 4
    assert made._choose([a, b], blocks) is a
    a.busy = 5
    assert made._choose([a, b], blocks) is b
    a.busy, b.busy = 10, 9
    assert made._choose([a, b], blocks) is b, "a may have no more"


def test_beginnings_are_compared_by_model_and_forgotten_at_last() -> None:
    text = "".join(chr(97 + i % 26) for i in range(1000))
    whole, begun = (
        blocks_of({"model": "m", "prompt": text}),
        blocks_of({"model": "m", "prompt": text[:600] + "!" * 400}),
    )
    assert len(whole) == len(begun) == 3
    assert whole[:2] == begun[:2]
    assert whole[2] != begun[2]
    assert not set(whole) & set(blocks_of({"model": "other", "prompt": text}))
    assert not blocks_of({"model": "m", "prompt": "short"})
    assert blocks_of({"messages": [{"role": "user", "content": text}]})
    assert len(blocks_of({"prompt": list(range(1000))})) > 10
    assert len(blocks_of({"prompt": "x" * 10**7})) == 512
    assert blocks_of({"prompt": "\ud800" * 600})
    memory = PrefixMemory(most=4)
    memory.note(whole, "a")
    memory.note(begun, "b")
    assert len(memory) == 4
    assert memory.find(whole, {"a", "b"}) == "a"
    assert memory.find(begun, {"a", "b"}) == "b"
    assert memory.find(whole, {"b"}) == "b", "a shorter beginning, of one that may be asked"
    assert memory.find(whole, set()) is None


def test_the_bodies_under_way_are_bounded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from aiohttp.test_utils import TestClient, TestServer

    monkeypatch.setattr(gateway, "_ALL_BODIES", 1000)

    async def play() -> None:
        made = Gateway(tmp_path, TOKEN)
        async with TestClient(TestServer(made.app())) as client:
            for size, status in ((900, 503), (1100, 429), (900, 503)):  # no replica is there, and nothing is left over
                answer = await client.post("/v1/completions", data=b"x" * size, headers=BEARER)
                assert answer.status == status
            assert made._body_bytes == 0

    asyncio.run(play())
