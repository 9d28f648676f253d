"""A group that loses a member: what waits in it is ended where the library can, and never keeps the next one waiting.

The communicators are stand-ins whose broadcast waits for ever once a member is gone, as the libraries' do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ascent.rollout.in_vllm.guard import GIVE_UP
from ascent.rollout.weights.control import ServerCallError
from ascent.rollout.weights.transports.collective import CollectiveTransport
from ascent.rollout.weights.transports.hccl import HcclApi
from ascent.rollout.weights.transports.nccl import StatefulNcclApi, StaticNcclApi

pytestmark = pytest.mark.torch


class Communicator:
    """As PyNcclCommunicator (`destroy` aborts, from any thread) or PyHcclCommunicator (its library's destroy only)."""

    def __init__(self, *, aborts: bool) -> None:
        self.available, self.disabled, self.comm = True, False, "comm"
        self.waiting, self.ended = threading.Event(), threading.Event()
        self.calls: list[str] = []
        if aborts:
            self.destroy = self._abort
        else:
            self.hccl = self

    def _abort(self) -> None:
        self.calls.append("abort")
        self.ended.set()

    def hcclCommDestroy(self, comm: str) -> None:  # noqa: N802  # the name is the library's
        assert comm == "comm"
        self.calls.append("destroy")

    def broadcast(self, broken: threading.Event) -> None:
        if broken.is_set():
            self.waiting.set()
            self.ended.wait()
        self.calls.append("sent")


class Group:
    """What the libraries' modules do, with the destroying half of the API as it is."""

    def __init__(self, api: type[Any], broken: threading.Event, made: list[Communicator]) -> None:
        self._api, self._broken, self._made = api, broken, made
        self.ends_waiting = api.ends_waiting

    def worker_info(self, address: str, port: int, rank_offset: int, world_size: int) -> dict[str, Any]:
        return {}

    def update_info(self, chunk: Any) -> dict[str, Any]:
        return {}

    def open(self, address: str, port: int, world_size: int) -> Communicator:
        self._made.append(Communicator(aborts=self._api is not HcclApi))
        return self._made[-1]

    def send(self, group: Communicator, chunk: Any) -> None:
        group.broadcast(self._broken)

    def destroy(self, group: Communicator) -> None:
        self._api.destroy(self, group)


class Server:
    vllm_version = "0.23.0"

    def __init__(self, url: str) -> None:
        self.url = url
        self.dies = self.stuck = False
        self.ended, self.dies_when = threading.Event(), threading.Event()
        self.dies_when.set()
        self.posts: list[str] = []

    def get(self, route: str, *, timeout: float) -> Any:
        return {"world_size": 1}

    def post(self, route: str, body: Any, *, timeout: float) -> Any:
        self.posts.append(route)
        if self.stuck and route == "/update_weights":
            self.ended.wait()
        if self.dies and route == "/update_weights":
            assert self.dies_when.wait(10)
            raise ServerCallError(f"{route}: connection reset")


@pytest.fixture(params=[HcclApi, StaticNcclApi, StatefulNcclApi])
def bench(request: pytest.FixtureRequest) -> Iterator[Any]:
    broken, made = threading.Event(), []  # type: ignore[var-annotated]

    class Tried(CollectiveTransport):
        backend, library = "tried", "a library"

        def _api_for(self, servers: Any, buffer_bytes: int) -> Any:
            return Group(request.param, broken, made)

    yield Tried("float32", "cpu", timeout=30.0), broken, made, request.param is not HcclApi
    for communicator in made:
        communicator.ended.set()


def deliver(transport: Any, servers: list[Any]) -> dict[str, Exception]:
    import torch

    failed = dict(transport.connect(servers, {}))
    if not failed:
        failed |= transport.send(servers, iter([("w", torch.zeros(4))]), lambda name, tensor: None)
    return failed


def until(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_group_that_lost_a_member_is_ended_and_the_next_delivery_works(bench: Any) -> None:
    transport, broken, made, aborts = bench
    servers = [Server("http://127.0.0.1:1"), Server("http://127.0.0.1:2")]
    assert deliver(transport, servers) == {}
    broken.set()
    servers[1].dies, servers[1].dies_when = True, made[0].waiting
    began = time.monotonic()
    assert set(deliver(transport, servers)) == {"http://127.0.0.1:1", "http://127.0.0.1:2"}
    assert time.monotonic() - began < 5, "nobody waits for a collective that never ends"
    assert servers[0].posts[-1] == GIVE_UP, "whoever watches the survivor must know that its workers wait for nothing"
    first = made[0]
    if aborts:
        until(lambda: first.calls == ["sent", "abort", "sent"])
    else:
        assert first.calls == ["sent"], "the library can't end what waits, and must not free what is in use"
    broken.clear()
    servers[1].dies = False
    assert deliver(transport, servers) == {}
    assert len(made) == 2
    assert made[1].calls == ["sent"]
    if not aborts:
        first.ended.set()  # by its own time limit
        until(lambda: first.calls == ["sent", "sent", "destroy"])


def test_nothing_that_hangs_keeps_the_process_from_ending(bench: Any) -> None:
    transport, broken, _, _ = bench
    servers = [Server("http://127.0.0.1:1"), Server("http://127.0.0.1:2")]
    before = set(threading.enumerate())
    broken.set()
    servers[0].stuck = servers[1].dies = True
    assert len(deliver(transport, servers)) == 2
    hanging = [thread for thread in threading.enumerate() if thread not in before]
    assert any(thread.name == "ascent-weights" for thread in hanging)
    assert all(thread.daemon for thread in hanging)
    servers[0].ended.set()


def test_workers_that_wait_for_a_group_that_never_was_are_given_up(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, _, made, _ = bench
    monkeypatch.setattr(Group, "open", lambda *_: 1 / 0)
    servers = [Server("http://127.0.0.1:1"), Server("http://127.0.0.1:2")]
    with pytest.raises(ZeroDivisionError):
        transport.connect(servers, {})
    monkeypatch.undo()
    monkeypatch.setattr(Group, "open", lambda *_: type("Disabled", (), {"available": False, "disabled": True})())
    assert "can't load a library" in str(transport.connect(servers, {})["http://127.0.0.1:1"])
    assert [server.posts[-1] for server in servers] == [GIVE_UP, GIVE_UP]
    monkeypatch.undo()
    assert deliver(transport, servers) == {}
    assert len(made) == 1


def test_a_group_that_ends_well_is_freed_once(bench: Any) -> None:
    transport, _, made, aborts = bench
    assert deliver(transport, [Server("http://127.0.0.1:1")]) == {}
    transport.close()
    transport.close()
    until(lambda: made[0].calls == ["sent", "abort" if aborts else "destroy"])
    assert deliver(transport, [Server("http://127.0.0.1:1")]) == {}
    assert len(made) == 2


def test_a_library_that_fails_while_it_frees_a_group_disturbs_nobody(
    bench: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transport, _, made, _ = bench
    assert deliver(transport, [Server("http://127.0.0.1:1")]) == {}
    monkeypatch.setattr(made[0], "destroy", lambda: 1 / 0, raising=False)
    monkeypatch.setattr(made[0], "hcclCommDestroy", lambda comm: 1 / 0)
    transport.close()
    until(lambda: "could not be freed: division by zero" in caplog.text)
    assert deliver(transport, [Server("http://127.0.0.1:1")]) == {}


def test_newer_hccl_communicators_are_closed_by_their_own_method() -> None:
    closed = []
    communicator = type("Communicator", (), {"available": True, "close": lambda self: closed.append(self)})()
    HcclApi("module", "HCCL", 1).destroy(communicator)
    assert closed == [communicator]
