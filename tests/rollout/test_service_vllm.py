"""`ascent serve` with a real vLLM server, used as users and trainers use it. One service for the whole file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.rollout.engines.served.jobs import jobs_of
from ascent.rollout.in_vllm.compat import short_answers
from ascent.rollout.service import record
from ascent.rollout.service.address import ServiceAddress, find_service
from ascent.rollout.service.processes import group_members
from ascent.types import Completion, RolloutRequest, Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
MAX_LEN = 64
NAME = "tiny"
SAMPLINGS = (
    Sampling(12),
    Sampling(12, temperature=0.0),
    Sampling(12, temperature=0.6),
    Sampling(12, top_p=0.5),
    Sampling(12, top_k=3),
    Sampling(12, min_p=0.3),
    Sampling(12, repetition_penalty=1.7),
    Sampling(40, stop_token_ids=tuple(range(100, 274))),
    Sampling(12, extra=(("presence_penalty", 1.5), ("min_tokens", 12), ("logit_bias", {7: 9.0}))),
)


class KeepsWeights:
    """A delivery that sends nothing: the servers keep the checkpoint's weights."""

    def __init__(self) -> None:
        self.failed: dict[str, Exception] = {}
        self.seconds: dict[str, float] = {}

    def close(self) -> None: ...

    def deliver(self, replicas: Sequence[Any], named_tensors: Any, version: int, canary: Any) -> KeepsWeights:
        return self


class Serving:
    """`ascent serve` as a user runs it, in a terminal of its own."""

    def __init__(self, folder: Path, model: Path, *options: str) -> None:
        command = [sys.executable, "-m", "ascent", "serve", str(model), "--name", NAME, "--max-model-len", str(MAX_LEN)]
        command += ["--kv-cache-mb", "16", *options]
        self.output = folder / "terminal"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def wait(self, words: str, count: int = 1, seconds: float = 1200.0) -> None:
        """Until the terminal shows `words` so many times."""
        until = time.monotonic() + seconds
        while self.text().count(words) < count:
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < until, self.text()
            time.sleep(0.1)

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(300)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home for services of these tests alone."""
    folder = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield folder


@pytest.fixture(scope="module")
def serving(home: Path, tiny_policy: Callable[..., Path]) -> Iterator[Serving]:
    made = Serving(home, tiny_policy())
    made.wait("ends it")
    yield made
    made.stop()


@pytest.fixture
def address(serving: Serving) -> ServiceAddress:
    return find_service(NAME)


def engine_for(address: ServiceAddress, version: int = 1) -> Any:
    from ascent.rollout.engines.served.engine import ServedEngine

    engine = ServedEngine(address, KeepsWeights(), holder_name="test run")
    engine.update_weights(iter(()), version)
    return engine


def server_pid(address: ServiceAddress) -> int:
    assert address.folder is not None
    found = record.read(address.folder)
    assert found is not None
    assert found.replicas[0].pid is not None
    return found.replicas[0].pid


def requests_for(samplings: Sequence[Sampling], n: int = 4, seed: int = 5) -> list[RolloutRequest]:
    return [RolloutRequest(f"g{g}", (10, 20, 30, 40), n, sampling, seed) for g, sampling in enumerate(samplings)]


def sample(engine: RolloutEngine, requests: Sequence[RolloutRequest]) -> dict[tuple[str, int], Completion]:
    engine.submit(requests)
    completions: list[Completion] = []
    while engine.unfinished():
        completions += engine.poll()
    by_place = {(completion.group_id, completion.index): completion for completion in completions}
    assert len(by_place) == len(completions) == sum(request.n for request in requests)
    return by_place


def status_of(url: str, method: str, route: str, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url + route, b"{}" if method == "POST" else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_no_route_of_vllm_is_open_without_the_token(serving: Serving, address: ServiceAddress) -> None:
    log = (Path(os.environ["XDG_STATE_HOME"]) / "ascent" / "serve" / NAME / "replica-0.log").read_text()
    routes = re.findall(r"Route: (/\S*), Methods: (.*)", log)
    assert {"/collective_rpc", "/update_weights", "/v1/completions"} <= {route for route, _ in routes}
    url = address.urls[0]
    for route, methods in [*routes, ("/metrics", "GET")]:
        for method in methods.replace(" ", "").split(","):
            if method in ("GET", "POST"):
                expected = 200 if route in ("/health", "/metrics") and method == "GET" else 401
                assert status_of(url, method, route, None) == expected, (method, route)
    control = {"/collective_rpc", "/update_weights", "/sleep", "/pause", "/init_weight_transfer_engine"}
    for route in control & {route for route, _ in routes}:
        assert status_of(url, "POST", route, address.token) == 409, route
    assert status_of(url, "GET", "/v1/models", address.token) == 200


def test_the_token_is_on_no_command_line(address: ServiceAddress) -> None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert address.token.encode() not in (entry / "cmdline").read_bytes()
            except OSError:
                continue


def test_samples_are_those_of_the_engine_in_process(address: ServiceAddress, tiny_policy: Callable[..., Path]) -> None:
    """Greedy and seeded, with every field of Sampling."""
    from ascent.rollout.engines.colocated import ColocatedEngine

    requests = requests_for(SAMPLINGS)
    engine = engine_for(address, version=3)
    served = sample(engine, requests)
    stats = engine.stats()
    engine.close()
    local = ColocatedEngine(EngineSettings(str(tiny_policy()), "float32", MAX_LEN, kv_cache_bytes=16 * 2**20))
    inside = sample(local, requests)
    local.close()
    for place, completion in inside.items():
        assert served[place].token_ids.tolist() == completion.token_ids.tolist(), place
        assert served[place].finish_reason == completion.finish_reason, place
        assert served[place].logps == pytest.approx(completion.logps, abs=1e-4), place
        assert served[place].weight_version == 3
    assert {completion.finish_reason for completion in served.values()} == {"stop", "length"}
    ids = [[served[request.group_id, index].token_ids.tolist() for index in range(4)] for request in requests]
    assert all(ids[0] != other for other in ids[1:]), "every field must have had an effect"
    assert stats.tokens_per_second > 0
    assert stats.time_to_first_token > 0


def test_answers_are_short(address: ServiceAddress) -> None:
    """Log-probabilities come as one string; a route, a class or a method of another name in vLLM would end that."""
    engine = engine_for(address, version=5)
    job = jobs_of(requests_for(SAMPLINGS[:1])[0])[0]
    answer = engine._http.run(engine._replicas[0].sample(job.body(), 5))
    assert short_answers.MARK.encode() in answer.content
    assert b"token_id:" not in answer.content
    completion = job.completion(answer.content, 5)
    assert len(completion.logps) == len(completion.token_ids) > 1
    engine.close()


def test_what_vllm_refuses_is_bad_input(address: ServiceAddress) -> None:
    engine = engine_for(address)
    with pytest.raises(InputError, match="top_p must be in"):
        sample(engine, requests_for([Sampling(4, top_p=3.0)]))
    engine.close()
    engine = engine_for(address)
    with pytest.raises(InputError, match="has no sampling setting 'presence_penaly'; did you mean 'presence_penalty'"):
        sample(engine, requests_for([Sampling(4, extra=(("presence_penaly", 1.0),))]))
    assert engine.unfinished() == 0
    engine.close()


def test_status_and_hold_are_told(address: ServiceAddress, ascent: Callable[..., Any]) -> None:
    engine = engine_for(address, version=4)
    with pytest.raises(InputError, match="held by test run"):
        engine_for(address)
    told = json.loads(ascent("serve", "--status", "--json").stdout)
    replica = told["services"][0]["replicas"][0]
    assert (replica["state"], replica["answer"]["weights"]["version"]) == ("ready", 4)
    assert replica["answer"]["holder"]["name"] == "test run"
    assert f"held by test run (process {os.getpid()}" in ascent("serve", "--status").stdout
    engine.close()
    assert "free" in ascent("serve", "--status").stdout


def test_what_is_broken_off_goes_on_where_it_was(address: ServiceAddress) -> None:
    from ascent.training.step.groups import Begun, LocalGroup
    from ascent.training.step.parts import joined, requests_of

    sampling = Sampling(50, temperature=0.0, extra=(("ignore_eos", True),))
    requests = [RolloutRequest(f"g{g}", (10, 20, 30 + g), 16, sampling) for g in range(16)]  # four times what fits
    engine = engine_for(address)
    assert engine.cannot_abort() is None
    expected = sample(engine, requests)
    engine.submit(requests)
    came: list[Completion] = []
    while not came:
        came += engine.poll()
    time.sleep(0.1)
    came += engine.abort()
    assert engine.unfinished() == 0
    parts = [each for each in came if each.finish_reason == "abort"]
    assert {len(each.token_ids) for each in parts} > {0}, "some had begun, some had not"
    whole = {(each.group_id, each.index): each for each in came if each.finish_reason != "abort"}
    assert len(whole) + len(parts) == 256
    engine.update_weights(iter(()), 2)
    asked = [
        going_on
        for request in requests
        for going_on in requests_of(
            LocalGroup(request, 0, 0, begun=Begun((), tuple(p for p in parts if p.group_id == request.group_id)))
        )
    ]
    rest = sample(engine, [request for request, _ in asked])
    for request, part in asked:
        assert part is not None
        whole[part.group_id, part.index] = joined(part, rest[request.group_id, 0])
    engine.close()
    assert whole.keys() == expected.keys()
    for place, completion in whole.items():
        assert completion.token_ids.tolist() == expected[place].token_ids.tolist()
        assert completion.logps == pytest.approx(expected[place].logps, abs=1e-4)
    assert any(each.weight_spans for each in whole.values())


def test_a_server_killed_while_sampling_costs_no_completion(serving: Serving, address: ServiceAddress) -> None:
    requests = requests_for([Sampling(50, extra=(("ignore_eos", True),))] * 16, n=16)  # four times what fits at once
    engine = engine_for(address)
    expected = sample(engine, requests)
    engine.submit(requests)
    completions: list[Completion] = []
    while not completions:
        completions += engine.poll()
    before = len(completions)
    pid = server_pid(address)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    serving.wait("was killed by SIGKILL")
    noticed = time.monotonic() - killed_at
    asked = 0
    while engine.unfinished():
        if engine.needs_weights():
            asked += 1
            engine.update_weights(iter(()), 2)
        completions += engine.poll()
    assert noticed < 60
    assert asked == 1
    assert before < len(completions) == 256
    for completion in completions:
        token_ids = expected[completion.group_id, completion.index].token_ids
        assert completion.token_ids.tolist() == token_ids.tolist()
    assert len({(completion.group_id, completion.index) for completion in completions}) == 256
    assert {completion.weight_version for completion in completions} == {1, 2}
    assert group_members(pid) == [], "the killed server's engine must be gone"
    assert server_pid(address) != pid
    assert find_service(NAME).urls == address.urls
    engine.close()


def test_stopping_leaves_nothing(serving: Serving, address: ServiceAddress, ascent: Callable[..., Any]) -> None:
    """The last test of the file: it stops the service."""
    pid = server_pid(address)
    assert len(group_members(pid)) >= 2
    assert ascent("serve", "--stop", NAME).returncode == 0
    assert serving.process.wait(300) == 0
    assert group_members(pid) == []
    assert address.folder is not None
    assert not address.folder.exists()
    assert f"service {NAME} stopped" in serving.text()
    assert ascent("serve", "--status").stdout == "no services\n"
    with pytest.raises(InputError, match="no service named 'tiny' is running"):
        find_service(NAME)
