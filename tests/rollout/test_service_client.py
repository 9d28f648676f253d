"""ServedEngine against stand-ins: what it sends, and what it makes of servers that fail in every way."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("uvicorn")

from tests.rollout.fake_servers import BEGUN, FakeServer, PostsOnce, SilentListener, address_of, tokens_of

from ascent.errors import InputError
from ascent.rollout.engine import (
    EngineLostError,
    PromptTooLongError,
    ServerMemoryError,
    ServersRestartingError,
    WeightSyncError,
)
from ascent.rollout.engines.served import dispatch as server_dispatch
from ascent.rollout.engines.served import replica
from ascent.rollout.engines.served.engine import ServedEngine
from ascent.rollout.engines.served.jobs import Job
from ascent.rollout.service import record, servers_file
from ascent.rollout.service.processes import start_ticks
from ascent.types import Completion, RolloutRequest, Sampling

PROMPT = (5, 6, 7)


class Bench:
    """Stand-ins, and the engines over them, all closed at the end of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: list[FakeServer] = []
        self.engines: list[ServedEngine] = []

    def server(self) -> FakeServer:
        self.servers.append(FakeServer(self.folder / str(len(self.servers))))
        return self.servers[-1]

    def engine(self, *servers: FakeServer, delivery: PostsOnce | None = None, **options: Any) -> ServedEngine:
        """An engine with weights of version 1 (unless it joins)."""
        address = options.pop("address", None) or address_of(*servers)
        made = ServedEngine(address, delivery or PostsOnce(), holder_name="test", **options)
        self.engines.append(made)
        if options.get("sends_weights", True):
            made.update_weights(iter(()), 1)
        return made


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(server_dispatch, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(server_dispatch, "HURRY_SECONDS", 0.02)
    monkeypatch.setattr(server_dispatch, "_PAUSES", (0.01,) * 5)
    monkeypatch.setattr(replica, "STATUS_SECONDS", 1.0)
    made = Bench(tmp_path)
    yield made
    for server in made.servers:
        server.gate.set()
    for engine in made.engines:
        engine.close()
    for server in made.servers:
        server.stop()


def groups(count: int, n: int = 3, seed: int | None = 7, sampling: Sampling | None = None) -> list[RolloutRequest]:
    return [RolloutRequest(f"g{g}", (*PROMPT, g), n, sampling or Sampling(8), seed) for g in range(count)]


def finish(engine: ServedEngine, seconds: float = 120.0) -> list[Completion]:
    """Poll to the end, giving weights of the next version when they are needed."""
    completions: list[Completion] = []
    version, until = 1, time.monotonic() + seconds
    while engine.unfinished():
        assert time.monotonic() < until, f"{engine.unfinished()} unfinished"
        if engine.needs_weights():
            version += 1
            engine.update_weights(iter(()), version)
        completions += engine.poll()
    return completions


def assert_whole(completions: list[Completion], requests: list[RolloutRequest]) -> None:
    """Each once, and what each must be."""
    places = [(completion.group_id, completion.index) for completion in completions]
    assert sorted(places) == sorted((request.group_id, index) for request in requests for index in range(request.n))
    for completion in completions:
        seed = 7 + completion.index
        expected = tokens_of({"token_ids": completion.prompt_ids, "sampling_params": {"seed": seed}})
        assert completion.token_ids.tolist() == expected
        assert completion.logps.tolist() == pytest.approx([-token / 10 for token in expected])


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.005)
    return time.monotonic() - began


def test_every_sampling_field_is_sent_and_every_completion_comes_once(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    sampling = Sampling(9, 0.7, 0.9, 11, 0.05, 1.1, (3, 4), (("presence_penalty", 0.5), ("ignore_eos", True)))
    requests = groups(2, sampling=sampling)
    engine.submit(requests)
    assert engine.unfinished() == 6
    completions = finish(engine)
    assert_whole(completions, requests)
    assert {completion.weight_version for completion in completions} == {1}
    assert all(completion.finished_at > completion.submitted_at for completion in completions)
    assert engine.poll() == []
    sent = [body["sampling_params"] for body in server.sampled]
    assert sorted(parameters.pop("seed") for parameters in sent) == [7, 7, 8, 8, 9, 9]
    expected = {
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 11,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "stop_token_ids": [3, 4],
        "logprobs": 0,
        "detokenize": False,
        "output_kind": 2,
        "presence_penalty": 0.5,
        "ignore_eos": True,
    }
    assert all(parameters == expected for parameters in sent)


def test_what_is_broken_off_comes_with_what_there_is_of_it(bench: Bench) -> None:
    """Some have ended, some are being sampled, some no server has yet."""
    servers = [bench.server(), bench.server()]
    for server in servers:
        server.aborted = set()
    engine = bench.engine(*servers)
    assert engine.cannot_abort() is None
    requests = groups(2)
    engine.submit(requests)
    first = finish(engine)
    for server in servers:
        server.gate.clear()
    more = [RolloutRequest(f"h{g}", (*PROMPT, g), 3, Sampling(8), 7) for g in range(400)]
    engine.submit(more)
    wait_for(lambda: sum(len(server.sampled) for server in servers) > 6 + 300)
    parts = engine.abort()
    assert engine.unfinished() == 0
    assert engine.poll() == []
    assert_whole(first, requests)
    assert sorted((each.group_id, each.index) for each in parts) == sorted(
        (r.group_id, i) for r in more for i in range(3)
    )
    assert {each.finish_reason for each in parts} == {"abort"}
    lengths = Counter(len(each.token_ids) for each in parts)
    assert lengths[BEGUN] > 300
    assert lengths[0] > 0
    assert lengths.total() == lengths[0] + lengths[BEGUN]
    for each in parts:
        body = {"token_ids": each.prompt_ids, "sampling_params": {"seed": 7 + each.index}}
        assert each.token_ids.tolist() == tokens_of(body)[: len(each.token_ids)]
        assert len(each.logps) == len(each.token_ids)
        assert each.weight_version == 1
    for server in servers:
        server.gate.set()
    engine.update_weights(iter(()), 2)  # nothing is being sampled
    engine.submit(requests)
    assert_whole(finish(engine), requests)


def test_when_a_server_dies_while_it_breaks_off_nothing_is_left_waiting(bench: Bench) -> None:
    server = bench.server()
    server.aborted = set()
    engine = bench.engine(server)
    server.gate.clear()
    requests = groups(3)
    engine.submit(requests)
    wait_for(lambda: len(server.sampled) == 9)
    server.stop()
    parts = engine.abort()
    assert sorted((each.group_id, each.index) for each in parts) == sorted(
        (r.group_id, i) for r in requests for i in range(3)
    )
    assert {len(each.token_ids) for each in parts} == {0}
    server.gate.set()
    server.start()
    engine.update_weights(iter(()), 2)
    engine.submit(requests)
    assert_whole(finish(engine), requests)


def test_servers_that_can_t_break_off_are_known(bench: Bench) -> None:
    engine = bench.engine(bench.server())
    assert "no way to break off a request" in (engine.cannot_abort() or "")


def test_without_a_seed_none_is_sent(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    engine.submit(groups(1, seed=None))
    finish(engine)
    assert {body["sampling_params"]["seed"] for body in server.sampled} == {None}


def test_sampling_that_failed_is_tried_again_and_not_for_ever(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    failures = [(500, {"error": {"message": "engine hiccup"}}), (503, "busy"), (200, {"choices": []}), (200, "junk")]
    server.behave = lambda body: failures.pop() if failures else None
    requests = groups(1)
    engine.submit(requests)
    assert_whole(finish(engine), requests)
    server.behave = lambda body: (500, {"error": {"message": "always broken"}})
    engine.submit(requests)
    with pytest.raises(EngineLostError, match=r"6 attempts.*always broken"):
        finish(engine)
    with pytest.raises(EngineLostError, match="always broken"):
        engine.submit(requests)


def test_control_calls_are_never_repeated(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    server.controls.clear()
    server.control_status = 500
    with pytest.raises(WeightSyncError, match="as told"):
        engine.update_weights(iter(()), 2)
    assert server.controls == ["/update_weights"]
    engine.submit(groups(1))
    assert [engine.poll() for _ in range(3)] == [[], [], []], "torn weights are never sampled from"
    assert server.sampled == []
    server.control_status = 200
    engine.update_weights(iter(()), 2)
    assert {completion.weight_version for completion in finish(engine)} == {2}


class NoTensors:
    """Weights of version 2, of which there are none to send."""

    steps = 2

    def content(self) -> str:
        return "two"

    def named_tensors(self) -> Iterator[Any]:
        return iter(())

    def canary(self) -> None: ...


def sampler_over(engine: ServedEngine) -> Any:
    from ascent.training.step.agreement import Agreement
    from ascent.training.step.clock import StepClock
    from ascent.training.step.ranks import Ranks
    from ascent.training.step.sampler import Sampler

    nothing: Any = lambda *_: None  # noqa: E731
    return Sampler(engine, NoTensors(), Agreement(Ranks(0, 1)), StepClock(), str, nothing, nothing)


@pytest.mark.torch
@pytest.mark.parametrize("failures", [[500], [0], [503, 0]])
def test_an_update_that_fails_at_a_living_server_is_tried_again(bench: Bench, failures: list[int]) -> None:
    server = bench.server()
    engine = bench.engine(server)
    server.controls.clear()
    server.control_failures = list(failures)
    sampler_over(engine).sync()
    assert server.controls == ["/update_weights"] * (len(failures) + 1)
    engine.submit(groups(1))
    assert {completion.weight_version for completion in finish(engine)} == {0}, "the sampler's first delivery"


@pytest.mark.torch
def test_a_server_s_memory_is_the_server_s(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    server.controls.clear()
    server.control_status, server.control_message = 500, "NPU out of memory. Tried to allocate 2.00 GiB"
    with pytest.raises(ServerMemoryError, match=r"a sampling server ran out of memory .*Tried to allocate 2.00 GiB"):
        sampler_over(engine).sync()
    assert server.controls == ["/update_weights"], "it would not fit the second time either"


def test_settings_that_the_server_refuses_are_bad_input(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    server.behave = lambda body: (400, {"error": {"message": "top_p must be in (0, 1]"}})
    engine.submit(groups(1))
    with pytest.raises(InputError, match=r"top_p must be in \(0, 1\]"):
        finish(engine)


def test_settings_that_json_cannot_say_are_bad_input(bench: Bench) -> None:
    engine = bench.engine(bench.server())
    engine.submit(groups(1, sampling=Sampling(4, extra=(("bad_words", {1, 2}),))))
    with pytest.raises(InputError, match="can't be sent to a server: Object of type set"):
        finish(engine)


def test_an_error_that_nobody_foresaw_ends_sampling(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = bench.engine(bench.server())
    monkeypatch.setattr(Job, "completion", lambda *_, **__: 1 / 0)
    engine.submit(groups(1))
    with pytest.raises(ZeroDivisionError):
        finish(engine)


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_sent(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    with pytest.raises(PromptTooLongError, match="a prompt of 60 tokens"):
        engine.submit([*groups(1), RolloutRequest("long", (1,) * 60, 1, Sampling(8))])
    assert engine.unfinished() == 0
    assert server.sampled == []


def test_a_service_is_held_by_one_training(bench: Bench) -> None:
    server = bench.server()
    delivery = PostsOnce()
    first = bench.engine(server, delivery=delivery)
    with pytest.raises(InputError, match=r"(?s)held by test \(process \d+ on .*Wait until it is free"):
        bench.engine(server)
    assert first.hold not in server.guard._status(first.hold)["holder"].values(), "who asks doesn't learn the hold"
    first.close()
    first.close()
    assert delivery.closed
    again = bench.engine(server)
    assert again.hold != first.hold


def test_a_closed_engine_leaves_the_service_free(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although a look at the server is on its way when the engine is closed."""
    release, renew = replica.Replica.release, replica.Replica.renew
    renewing = threading.Event()

    async def renew_slowly(self: replica.Replica) -> replica.ReplicaStatus:
        renewing.set()
        await asyncio.sleep(0.3)
        return await renew(self)

    async def release_slowly(self: replica.Replica) -> None:
        await release(self)
        await asyncio.sleep(0.6)

    server = bench.server()
    engine = bench.engine(server)
    monkeypatch.setattr(replica.Replica, "release", release_slowly)
    monkeypatch.setattr(replica.Replica, "renew", renew_slowly)
    assert renewing.wait(120)
    engine.close()
    assert server.guard._state.holder is None


def test_what_is_wrong_at_the_start_is_said(bench: Bench) -> None:
    server = bench.server()
    with pytest.raises(InputError, match=r"(?s)token is needed.*Check the API key"):
        ServedEngine(address_of(server, token="wrong"), PostsOnce(), holder_name="test")
    server.stop()
    with pytest.raises(EngineLostError, match="Cannot connect"):
        bench.engine(server, connect_seconds=0.3)


def test_a_server_of_another_version_is_refused_in_words(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    server = bench.server()
    told = server.guard._status

    def old(hold: str) -> dict[str, Any]:
        return {**told(hold), "schema": "ascent.replica/1"}

    monkeypatch.setattr(server.guard, "_status", old)
    with pytest.raises(InputError, match=r"another version of Ascent \(it speaks ascent\.replica/1, this ") as refused:
        bench.engine(server)
    assert "ascent serve --stop NAME; ascent serve MODEL --name NAME" in str(refused.value)
    assert server.url in str(refused.value)
    assert server.guard._state.holder is None, "who can't use it doesn't take it from others"
    assert server.controls == []


def test_proxies_of_the_environment_are_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    engine = bench.engine(bench.server())
    engine.submit(groups(1))
    assert len(finish(engine)) == 3


def test_the_unfinished_go_on_after_a_restart_with_new_weights(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    requests = groups(4)
    engine.submit(requests[:1])
    completions = finish(engine)
    server.gate.clear()
    engine.submit(requests[1:])
    wait_for(lambda: len(server.sampled) == 12)
    assert not engine.needs_weights()
    server.stop()
    server.gate.set()
    assert not engine.needs_weights(), "nothing is there to take weights"
    assert engine.poll() == []
    server.start()
    wait_for(engine.needs_weights)
    engine.update_weights(iter(()), 2)
    completions += finish(engine)
    assert_whole(completions, requests)
    assert sorted(completion.weight_version for completion in completions) == [1] * 3 + [2] * 9


def test_groups_stay_together_and_the_least_busy_server_is_next(bench: Bench) -> None:
    first, second = bench.server(), bench.server()
    engine = bench.engine(first, second)
    first.gate.clear()
    second.gate.clear()
    sizes = (8, 2, 2, 2, 2)  # the first group weighs as much as the others together
    engine.submit([RolloutRequest(f"g{g}", (*PROMPT, g), n, Sampling(8), 7) for g, n in enumerate(sizes)])
    wait_for(lambda: len(first.sampled) + len(second.sampled) == 16)
    seen = [{body["token_ids"][-1] for body in server.sampled} for server in (first, second)]
    assert sorted(seen, key=len) == [{0}, {1, 2, 3, 4}]
    first.gate.set()
    second.gate.set()
    assert len(finish(engine)) == 16


def test_when_one_of_two_servers_dies_the_other_finishes(bench: Bench) -> None:
    first, second = bench.server(), bench.server()
    engine = bench.engine(first, second)
    first.gate.clear()
    second.gate.clear()
    requests = groups(6)
    engine.submit(requests)
    wait_for(lambda: len(first.sampled) + len(second.sampled) == 18)
    first.stop()
    second.gate.set()
    assert_whole(finish(engine), requests)
    assert len(second.sampled) == 18
    first.start()
    first.gate.set()
    first.sampled.clear()
    wait_for(lambda: all(member.up for member in engine._dispatcher.members))
    engine.update_weights(iter(()), 2)
    engine.submit(requests)
    assert_whole(finish(engine), requests)
    assert first.sampled, "a restarted server samples again after the next weights"


def test_a_server_that_hangs_is_noticed_and_its_completions_go_elsewhere(bench: Bench) -> None:
    first, second = bench.server(), bench.server()
    engine = bench.engine(first, second)
    first.gate.clear()
    second.gate.clear()
    requests = groups(6)
    engine.submit(requests)
    wait_for(lambda: len(first.sampled) + len(second.sampled) == 18)
    first.stop()
    silent = SilentListener(first.port)
    second.gate.set()
    assert_whole(finish(engine), requests)
    silent.close()


def test_a_service_whose_servers_all_hang_is_lost_in_the_end(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server, patience=1.0)
    server.stop()
    silent = SilentListener(server.port)
    engine.submit(groups(1))
    began = time.monotonic()
    with pytest.raises(EngineLostError, match="no sampling server has answered for 1 s"):
        finish(engine)
    assert time.monotonic() - began < 60  # the default is 600
    silent.close()


def test_a_failed_service_says_why_and_where_its_log_is(bench: Bench, tmp_path: Path) -> None:
    server = bench.server()
    folder = tmp_path / "service"
    folder.mkdir()
    found = record.ServiceRecord(
        "stand-ins",
        os.getpid(),
        start_ticks(os.getpid()) or 0,
        "model",
        64,
        "token",
        None,
        {},
        (record.ReplicaRecord(server.url, "/logs/replica-0.log", "ready"),),
        "ready",
    )
    record.write(folder, found)
    engine = bench.engine(address=address_of(server, folder=folder))
    server.gate.clear()
    engine.submit(groups(1))
    record.write(folder, dataclasses.replace(found, state="failed", why="process 7 was killed by SIGKILL"))
    with pytest.raises(EngineLostError, match=r"killed by SIGKILL.*/logs/replica-0\.log"):
        finish(engine)


def test_weights_are_iterated_to_their_end_whatever_happens(bench: Bench) -> None:
    server = bench.server()
    delivery = PostsOnce()
    engine = bench.engine(server, delivery=delivery)
    joined = bench.engine(server, hold=engine.hold, sends_weights=False)
    seen = []

    def tensors() -> Iterator[Any]:
        for number in range(3):
            seen.append(number)
            yield f"weight {number}", None

    engine.update_weights(tensors(), 2)
    joined.update_weights(tensors(), 2)
    server.gate.clear()
    engine.submit(groups(1))
    wait_for(lambda: len(server.sampled) == 3)
    with pytest.raises(WeightSyncError, match="3 completions are still being sampled"):
        engine.update_weights(tensors(), 3)
    server.gate.set()
    finish(engine)
    server.control_status = 500
    with pytest.raises(WeightSyncError):
        engine.update_weights(tensors(), 3)
    assert seen == [0, 1, 2] * 4
    assert [version for version, _ in delivery.delivered] == [1, 2]


def test_who_joins_samples_with_the_version_that_was_sent(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    joined = bench.engine(server, hold=engine.hold, sends_weights=False)
    joined.update_weights(iter(()), 2)  # before the weights are there
    requests = groups(2)
    joined.submit(requests)
    assert [joined.poll() for _ in range(3)] == [[], [], []]
    assert not joined.needs_weights()
    engine.update_weights(iter(()), 2)
    completions = finish(joined)
    assert_whole(completions, requests)
    assert {completion.weight_version for completion in completions} == {2}


def test_servers_that_did_not_get_the_weights_do_not_sample(bench: Bench) -> None:
    first, second = bench.server(), bench.server()
    engine = bench.engine(first, second, delivery=PostsOnce())
    first.control_status = 500
    engine.update_weights(iter(()), 2)
    requests = groups(4)
    engine.submit(requests)
    assert_whole(finish(engine), requests)
    assert (len(first.sampled), len(second.sampled)) == (0, 12)


def test_servers_that_die_while_they_are_given_weights_may_be_given_them_again(bench: Bench) -> None:
    server = bench.server()
    delivery = PostsOnce()
    engine = bench.engine(server, delivery=delivery)
    delivery.during = server.stop
    with pytest.raises(ServersRestartingError, match="no server got the weights"):
        engine.update_weights(iter(()), 2)
    delivery.during = lambda: None
    threading.Timer(0.3, server.start).start()
    engine.update_weights(iter(()), 2)  # waits for a server
    requests = groups(1)
    engine.submit(requests)
    assert_whole(finish(engine), requests)


def test_a_hold_that_another_had_for_a_moment_is_taken_back(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    state = server.guard._state
    state._lease = None
    other = state.take({"name": "other", "pid": 1, "host": "x", "since": "y"})
    wait_for(lambda: engine._dispatcher.members[0].taken_at is not None)
    state.release(other)
    requests = groups(1)
    engine.submit(requests)
    assert_whole(finish(engine), requests)


def test_a_hold_that_another_training_took_ends_this_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_dispatch, "TAKEN_AFTER", 0.2)
    server = bench.server()
    engine = bench.engine(server)
    server.guard._state._lease = None  # it ran out
    server.guard._state.take({"name": "thief", "pid": 1, "host": "x", "since": "y"}, "another hold")
    engine.submit(groups(1))
    with pytest.raises(EngineLostError, match=r"held by thief.*lost its hold"):
        finish(engine)
    assert server.sampled == []


def test_a_hold_that_ran_out_is_taken_again(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    server.guard._state._lease = None
    requests = groups(1)
    engine.submit(requests)
    completions = finish(engine)
    assert_whole(completions, requests)
    assert {completion.weight_version for completion in completions} == {1}, "its weights were still there"


def test_statistics_come_from_the_server(bench: Bench) -> None:
    server = bench.server()
    engine = bench.engine(server)
    engine.stats()
    server.metrics_n = 4
    engine.submit(groups(2))
    finish(engine)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_cache_use) == (3, 2, 0.5)
    assert stats.preemptions == 3
    assert stats.prefix_hit_rate == pytest.approx(0.1)
    assert stats.time_to_first_token == pytest.approx(0.1)
    assert stats.tokens_per_second > 0
    assert 0 < stats.latency_p50 <= stats.latency_p95
    later = engine.stats()
    assert (later.preemptions, later.tokens_per_second, later.time_to_first_token) == (0, 0, 0)


def test_a_server_that_moves_is_followed_and_samples_nothing_before_it_has_the_weights(bench: Bench) -> None:
    """As where its machine is lost and the launcher of the training places it anew."""
    stays, lost, anew = bench.server(), bench.server(), bench.server()
    servers_file.publish(bench.folder, "ready", [stays.url, lost.url])
    file = bench.folder / servers_file.SERVERS
    engine = bench.engine(address=dataclasses.replace(address_of(stays, lost), servers=file))
    lost.gate.clear()
    requests = groups(4)
    engine.submit(requests)
    wait_for(lambda: bool(lost.sampled))
    lost.stop()
    servers_file.publish(bench.folder, "ready", [stays.url, anew.url])
    completions = finish(engine)
    assert_whole(completions, requests)
    wait_for(lambda: "hold" in "".join(anew.controls) or engine._dispatcher.members[1].up)
    assert not anew.sampled, "it has no weights yet"
    engine.update_weights(iter(()), 9)
    requests = [dataclasses.replace(request, group_id=f"h{request.group_id}") for request in groups(6)]
    engine.submit(requests)
    assert_whole(finish(engine), requests)
    assert anew.sampled


def test_servers_that_are_given_up_end_sampling_with_the_reason(bench: Bench) -> None:
    server = bench.server()
    servers_file.publish(bench.folder, "ready", [server.url])
    address = dataclasses.replace(address_of(server), servers=bench.folder / servers_file.SERVERS)
    engine = bench.engine(address=address)
    servers_file.publish(bench.folder, "failed", [server.url], "replica 0 failed 3 times")
    wait_for(lambda: engine._dispatcher.failure is not None)
    with pytest.raises(EngineLostError, match="replica 0 failed 3 times"):
        engine.poll()
