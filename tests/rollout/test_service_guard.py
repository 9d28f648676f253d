"""The guard's rules, and the guard as an ASGI application over a stand-in for vLLM's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.in_vllm import guard as guard_module
from ascent.rollout.in_vllm.guard import Guard, Message, Receive, Scope, Send
from ascent.rollout.in_vllm.guard_state import LEASE_SECONDS, RefusedError, ReplicaState

TOKEN = "secret-token-of-the-service"
HOLDER = {"name": "run", "pid": 1, "host": "here", "since": "now"}
OTHER = {"name": "other run", "pid": 2, "host": "there", "since": "then"}


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Served:
    """What vLLM would have got. `slow` requests run until they are told that the client went away, or `finish`."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.disconnected = 0
        self.slow = False
        self.stubborn = False
        self.finish = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        while self.slow and not self.finish.is_set():
            reading, ending = asyncio.ensure_future(receive()), asyncio.ensure_future(self.finish.wait())
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and reading.result()["type"] == "http.disconnect" and not self.stubborn:
                self.disconnected += 1
                break
            if self.stubborn:
                await self.finish.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'"served"'})


class Door:
    """A guard before `Served`, called as uvicorn would call it."""

    def __init__(
        self, folder: Path, *, open_metrics: bool = True, clock: Clock | None = None, adapters: int = 0
    ) -> None:
        token_file = folder / "token"
        token_file.write_text(TOKEN + "\n")
        settings = {
            "model": "tiny",
            "max_model_len": 64,
            "token_file": str(token_file),
            "open_metrics": open_metrics,
            "adapters": adapters,
        }
        self.served = Served()
        self.state = ReplicaState(clock or Clock())
        self.guard = Guard(self.served, settings, self.state)

    async def call(
        self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, Any]:
        """(status, content) of one request; header names have '-' for '_'."""
        sent: list[Message] = []
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        raw = b"" if body is None else json.dumps(body).encode()
        pending: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> Message:
            if pending:
                return pending.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        await self.guard(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent)
        return sent[0]["status"], json.loads(content)

    async def hold(self) -> str:
        """Take the server."""
        status, content = await self.call("POST", "/ascent/hold", {"holder": HOLDER})
        assert status == 200
        return str(content["hold"])


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "schlüssel"])
@pytest.mark.parametrize(
    "path",
    ["/update_weights", "/collective_rpc", "/sleep", "/ascent/status", "/v1/models", "/health/", "/", "/metrics/x"],
)
def test_without_the_token_nothing_but_health_is_reached(door: Door, token: str | None, path: str) -> None:
    async def test() -> None:
        for method in ("GET", "POST", "OPTIONS"):
            status, content = await door.call(method, path, token=token)
            assert (status, content["code"]) == (401, "token")
        assert door.served.paths == []
        assert (await door.call("GET", "/health", token=token))[0] == 200

    run(test)


def test_metrics_are_open_on_loopback_only(tmp_path: Path) -> None:
    async def test() -> None:
        assert (await Door(tmp_path).call("GET", "/metrics", token=None))[0] == 200
        elsewhere = Door(tmp_path, open_metrics=False)
        assert (await elsewhere.call("GET", "/metrics", token=None))[0] == 401
        assert (await elsewhere.call("GET", "/metrics"))[0] == 200

    run(test)


def test_websockets_are_closed_and_lifespan_passes(door: Door) -> None:
    async def test() -> None:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            raise AssertionError("nothing is read")

        await door.guard({"type": "websocket", "path": "/health", "headers": []}, receive, send)
        assert sent == [{"type": "websocket.close", "code": 1008}]
        assert door.served.paths == []

    run(test)


@pytest.mark.parametrize(
    "path",
    [
        "/update_weights",
        "/collective_rpc",
        "/sleep",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/one_of_the_future",
    ],
)
def test_control_needs_the_hold(door: Door, path: str) -> None:
    async def test() -> None:
        status, content = await door.call("POST", path)
        assert (status, content["code"]) == (409, "hold")
        hold = await door.hold()
        status, content = await door.call("POST", path, x_ascent_hold="not it")
        assert (status, content["code"]) == (409, "hold")
        assert "held by run (process 1 on here, since now)" in content["error"]
        assert door.served.paths == []
        assert (await door.call("POST", path, x_ascent_hold=hold))[0] == 200
        assert door.served.paths == [path]

    run(test)


def test_a_hold_is_for_one_and_is_told(door: Door) -> None:
    async def test() -> None:
        hold = await door.hold()
        status, content = await door.call("POST", "/ascent/hold", {"holder": OTHER})
        assert (status, content["code"], content["holder"]) == (409, "held", HOLDER)
        status, content = await door.call("POST", "/ascent/hold", {"holder": OTHER, "hold": "guessed"})
        assert (status, content["code"]) == (409, "held")
        status, content = await door.call("POST", "/ascent/hold", {"holder": HOLDER, "hold": hold})
        assert (status, content["hold"]) == (200, hold), "the holder may take it again"
        assert (await door.call("GET", "/ascent/status"))[1]["holder"] == HOLDER
        assert (await door.call("POST", "/ascent/release", {}, x_ascent_hold="not it"))[0] == 409
        assert (await door.call("POST", "/ascent/release", {}, x_ascent_hold=hold))[0] == 200
        assert (await door.call("POST", "/ascent/hold", {"holder": OTHER}))[0] == 200

    run(test)


def test_sampling_needs_exactly_the_named_weights(door: Door) -> None:
    async def sample(hold: str, version: str) -> Any:
        return await door.call("POST", guard_module.GENERATE, {}, x_ascent_hold=hold, x_ascent_weights=version)

    async def test() -> None:
        hold = await door.hold()
        status, content = await sample(hold, "1")
        assert (status, content["code"], content["weights"]["state"]) == (409, "weights", "none")
        assert (await door.call("POST", "/ascent/weights/begin", {"version": 1}, x_ascent_hold=hold))[0] == 200
        assert (await sample(hold, "1"))[1]["weights"] == {"state": "updating", "version": 1}
        assert (await door.call("POST", "/v1/completions", {}))[1]["code"] == "updating"
        status, content = await door.call("POST", "/ascent/weights/commit", {"version": 2}, x_ascent_hold=hold)
        assert (status, content["code"]) == (409, "weights"), "what was not begun can't be committed"
        assert (await door.call("POST", "/ascent/weights/commit", {"version": 1}, x_ascent_hold=hold))[0] == 200
        for version, expected in (("1", 200), ("0", 409), ("2", 409), ("-1", 400), ("one", 400)):
            assert (await sample(hold, version))[0] == expected, version
        assert (await sample("not it", "1"))[1]["code"] == "hold"
        assert (await door.call("POST", "/v1/completions", {}))[0] == 200
        assert door.served.paths == [guard_module.GENERATE, "/v1/completions"]

    run(test)


def test_begin_breaks_off_what_others_sample(door: Door) -> None:
    async def test() -> None:
        hold = await door.hold()
        door.served.slow = True
        question = asyncio.ensure_future(door.call("POST", "/v1/completions", {}))
        while not door.served.paths:
            await asyncio.sleep(0)
        assert (await door.call("GET", "/ascent/status"))[1]["running"] == 1
        status, _ = await door.call("POST", "/ascent/weights/begin", {"version": 1}, x_ascent_hold=hold)
        assert status == 200
        status, content = await question
        assert (status, content["code"]) == (409, "updating")
        assert door.served.disconnected == 1

    run(test)


def test_calls_that_nobody_waits_for_any_more_are_told(tmp_path: Path) -> None:
    clock = Clock()
    door = Door(tmp_path, clock=clock)

    async def stuck() -> float:
        return float((await door.call("GET", "/ascent/status"))[1]["stuck_seconds"])

    async def test() -> None:
        hold = await door.hold()
        door.served.slow = door.served.stubborn = True
        loading = asyncio.ensure_future(door.call("POST", "/update_weights", {}, x_ascent_hold=hold))
        await asyncio.sleep(0.01)
        assert await stuck() == 0, "the trainer waits for it"
        assert (await door.call("POST", "/ascent/weights/give_up", {}, x_ascent_hold="not it"))[0] == 409
        assert (await door.call("POST", "/ascent/weights/give_up", {}, x_ascent_hold=hold))[0] == 200
        await asyncio.sleep(0.02)
        assert await stuck() >= 0.02
        door.served.finish.set()
        await loading
        assert await stuck() == 0
        door.served.finish.clear()
        loading = asyncio.ensure_future(door.call("POST", "/update_weights", {}, x_ascent_hold=hold))
        await asyncio.sleep(0.01)
        assert await stuck() == 0, "another update"
        clock.now += LEASE_SECONDS + 1  # the trainer is gone
        assert await stuck() == 0
        await asyncio.sleep(0.02)
        assert await stuck() >= 0.02
        door.served.finish.set()
        await loading

    run(test)


def test_begin_is_undone_when_requests_do_not_end(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "_DRAIN_SECONDS", 0.05)

    async def test() -> None:
        hold = await door.hold()
        door.served.slow = door.served.stubborn = True
        running = asyncio.ensure_future(door.call("POST", "/v1/completions", {}))
        while not door.served.paths:
            await asyncio.sleep(0)
        status, content = await door.call("POST", "/ascent/weights/begin", {"version": 1}, x_ascent_hold=hold)
        assert (status, content["code"]) == (409, "running")
        assert door.state.weights == "none"
        door.served.finish.set()
        await running

    run(test)


@pytest.mark.parametrize(
    "body", [[], "x", {"holder": "me"}, {"holder": HOLDER, "hold": 3}, {"holder": HOLDER, "hold": ""}]
)
def test_bad_requests_are_refused(door: Door, body: Any) -> None:
    async def test() -> None:
        assert (await door.call("POST", "/ascent/hold", body))[0] == 400
        assert (await door.call("POST", "/ascent/unknown", {}))[0] == 404
        assert (await door.call("GET", "/ascent/hold"))[0] == 404
        hold = await door.hold()
        for version in (True, -1, 1.5, "x", None):
            answer = await door.call("POST", "/ascent/weights/begin", {"version": version}, x_ascent_hold=hold)
            assert answer[0] == 400, version
        assert (await door.call("POST", "/ascent/hold", {"holder": {"name": "x" * 100_000}}))[0] == 413

    run(test)


def test_a_hold_runs_out_unless_renewed() -> None:
    clock = Clock()
    state = ReplicaState(clock)
    hold = state.take(HOLDER)
    clock.now += LEASE_SECONDS - 1
    state.renew(hold)
    clock.now += LEASE_SECONDS - 1
    held = state.holder
    clock.now += 1
    assert (held, state.holder) == (HOLDER, None)
    with pytest.raises(RefusedError, match="nobody holds this server"):
        state.renew(hold)
    assert state.take(OTHER) != hold


def test_another_holder_never_finds_weights_of_the_last() -> None:
    state = ReplicaState(Clock())
    hold = state.take(HOLDER)
    state.begin(hold, 3)
    state.commit(hold, 3)
    state.release(hold)
    assert (state.weights, state.version) == ("ready", 3)
    other = state.take(OTHER)
    assert state.weights == "none"
    with pytest.raises(RefusedError, match="version 3 wanted"):
        state.check_version(other, 3)


def test_who_lost_a_hold_and_takes_it_again_finds_its_weights() -> None:
    clock = Clock()
    state = ReplicaState(clock)
    hold = state.take(HOLDER)
    state.begin(hold, 3)
    state.commit(hold, 3)
    clock.now += LEASE_SECONDS + 1
    assert state.take(HOLDER, hold) == hold
    state.check_version(hold, 3)


def test_torn_weights_stay_torn_whoever_comes() -> None:
    clock = Clock()
    state = ReplicaState(clock)
    state.begin(state.take(HOLDER), 3)
    clock.now += LEASE_SECONDS + 1
    other = state.take(OTHER)
    with pytest.raises(RefusedError, match="on their way"):
        state.check_whole()
    state.begin(other, 4)
    state.abandon(other)
    with pytest.raises(RefusedError, match="on their way"):
        state.check_whole()
    state.begin(other, 5)
    state.commit(other, 5)
    state.check_version(other, 5)
    state.check_whole()


async def take_adapter(door: Door, name: Any, holder: dict[str, Any] = HOLDER) -> tuple[int, Any]:
    return await door.call("POST", "/ascent/hold", {"holder": holder, "adapter": name})


def test_adapters_are_held_and_versioned_apart(tmp_path: Path) -> None:
    async def test() -> None:
        door = Door(tmp_path, adapters=2)
        first, second = [(await take_adapter(door, name))[1]["hold"] for name in ("a", "b")]
        for hold, version in ((first, 3), (second, 8)):
            assert (await door.call("POST", "/ascent/weights/begin", {"version": version}, x_ascent_hold=hold))[
                0
            ] == 200
            assert (await door.call("POST", "/ascent/weights/commit", {"version": version}, x_ascent_hold=hold))[
                0
            ] == 200
        asked = [(first, "3", 200), (second, "8", 200), (first, "8", 409), (second, "3", 409), ("", "3", 409)]
        for hold, wanted, status in asked:
            found, content = await door.call(
                "POST", "/inference/v1/generate", {}, x_ascent_hold=hold, x_ascent_weights=wanted
            )
            assert found == status, content
        told = (await door.call("GET", "/ascent/status", x_ascent_hold=second))[1]
        assert told["weights"]["version"] == 8
        assert [(each["name"], each["weights"]["version"]) for each in told["adapters"]] == [("a", 3), ("b", 8)]

    run(test)


def test_base_weights_are_frozen_while_adapters_are_held_and_the_other_way_round(tmp_path: Path) -> None:
    async def test() -> None:
        clock = Clock()
        door = Door(tmp_path, adapters=2, clock=clock)
        door.guard._holds._clock = clock
        hold = (await take_adapter(door, "a"))[1]["hold"]
        status, content = await door.call("POST", "/ascent/hold", {"holder": OTHER})
        assert (status, content["code"]) == (409, "held")
        assert "frozen" in content["error"]
        for path in ("/update_weights", "/start_weight_update", "/sleep", "/reset_prefix_cache"):
            status, content = await door.call("POST", path, {}, x_ascent_hold=hold)
            assert (status, content["code"]) == (409, "adapter")
        assert (await door.call("POST", "/v1/load_lora_adapter", {}, x_ascent_hold=hold))[0] == 200
        clock.now += LEASE_SECONDS + 1  # its holder is gone
        assert (await door.call("POST", "/ascent/hold", {"holder": OTHER}))[0] == 200
        status, content = await take_adapter(door, "a")
        assert (status, content["code"]) == (409, "held")
        assert "base weights are being trained by other run" in content["error"]

    run(test)


def test_what_can_be_no_adapter_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        none, two = Door(tmp_path), Door(tmp_path, adapters=2)
        assert (await take_adapter(none, "a"))[1]["code"] == "adapter"
        for name in ("../a", "a/b", "-a", "a b", "a" * 200, "a@1"):
            assert (await take_adapter(two, name))[1]["code"] == "adapter"
        for wrong in ("", 7, ["a"]):
            assert (await take_adapter(two, wrong))[0] == 400
        assert [(await take_adapter(two, name))[0] for name in ("a", "b", "c")] == [200, 200, 409]

    run(test)


def test_an_update_of_an_adapter_breaks_off_nothing_of_others(tmp_path: Path) -> None:
    async def test() -> None:
        door = Door(tmp_path, adapters=2)
        holds = [(await take_adapter(door, name))[1]["hold"] for name in ("a", "b")]
        for hold in holds:
            await door.call("POST", "/ascent/weights/begin", {"version": 1}, x_ascent_hold=hold)
            await door.call("POST", "/ascent/weights/commit", {"version": 1}, x_ascent_hold=hold)
        door.served.slow = True
        sampling = [
            asyncio.ensure_future(
                door.call("POST", "/inference/v1/generate", {}, x_ascent_hold=hold, x_ascent_weights="1")
            )
            for hold in holds
        ]
        await asyncio.sleep(0.05)
        began = await asyncio.wait_for(
            door.call("POST", "/ascent/weights/begin", {"version": 2}, x_ascent_hold=holds[0]), 5
        )
        assert began[0] == 200
        assert (await sampling[0])[1]["code"] == "updating"
        assert not sampling[1].done()
        door.served.finish.set()
        assert (await sampling[1])[0] == 200

    run(test)
