"""Real servers, killed in every way: nothing is lost, nothing is doubled, nothing is left over."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.test_service_vllm import KeepsWeights, Serving, sample

from ascent.rollout.engine import EngineLostError, EngineSettings
from ascent.rollout.service import record
from ascent.rollout.service.processes import group_members, start_ticks
from ascent.rollout.service.running import ServiceStartError, running_service
from ascent.rollout.service.settings import ServiceSettings
from ascent.types import Completion, RolloutRequest, Sampling

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(3600)]
MAX_LEN = 64


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def settings(tiny_policy: Callable[..., Path]) -> ServiceSettings:
    engine = EngineSettings(str(tiny_policy()), "float32", MAX_LEN, max_num_seqs=16, kv_cache_bytes=16 * 2**20)
    return ServiceSettings(engine, "cpu", max_restarts=20)


def found(name: str) -> record.ServiceRecord:
    read = record.read(record.services_folder() / name)
    assert read is not None
    return read


def requests(round_: int) -> list[RolloutRequest]:
    sampling = Sampling(50, extra=(("ignore_eos", True),))
    return [RolloutRequest(f"r{round_}g{g}", (10 + g, 20, 30), 8, sampling, 7) for g in range(8)]


def engine_for(address: Any) -> Any:
    from ascent.rollout.engines.served.engine import ServedEngine

    engine = ServedEngine(address, KeepsWeights(), holder_name="kills")
    engine.update_weights(iter(()), 1)
    return engine


def sample_on(engine: Any) -> None:
    """Until the service is lost."""
    while True:
        if not engine.unfinished():
            engine.submit(requests(0))
        engine.poll()


def wait_until_gone(groups: list[int], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while any(group_members(group) for group in groups):
        assert time.monotonic() < until, [group_members(group) for group in groups]
        time.sleep(0.1)


def kill_one(draw: random.Random, name: str) -> str:
    """Kill a server's front end or its engine, or stop the front end for good."""
    alive = [replica for replica in found(name).replicas if replica.state == "ready" and replica.pid]
    if not alive:
        return ""
    victim = draw.choice(alive)
    assert victim.pid is not None
    members = group_members(victim.pid)
    how = draw.choice(["front end", "engine", "hang"])
    if how == "engine":
        os.kill(max(members), signal.SIGKILL)
    else:
        os.kill(victim.pid, signal.SIGKILL if how == "front end" else signal.SIGSTOP)
    return how


def test_kills_in_a_loop_cost_no_completion(settings: ServiceSettings) -> None:
    draw = random.Random(3)
    with running_service(replace(settings, replicas=2), name="kills") as address:
        engine = engine_for(address)
        expected = {
            place[0][2:] + str(place[1]): c.token_ids.tolist() for place, c in sample(engine, requests(0)).items()
        }
        version, kinds = 1, []
        for round_ in range(6):
            engine.submit(requests(round_))
            completions: list[Completion] = []
            kill_at = time.monotonic() + draw.uniform(0.0, 1.0)
            killed = False
            while engine.unfinished():
                if not killed and time.monotonic() > kill_at:
                    kinds.append(kill_one(draw, "kills"))
                    killed = True
                if engine.needs_weights():
                    version += 1
                    engine.update_weights(iter(()), version)
                completions += engine.poll()
            places = [(completion.group_id, completion.index) for completion in completions]
            assert len(places) == len(set(places)) == 64
            for completion in completions:
                assert completion.token_ids.tolist() == expected[completion.group_id[2:] + str(completion.index)]
        assert [kind for kind in kinds if kind], "nothing was killed"
        engine.close()


def test_servers_end_when_their_supervisor_is_killed(settings: ServiceSettings) -> None:
    with running_service(settings, name="orphans") as address:
        engine = engine_for(address)
        supervisor = found("orphans")
        groups = [replica.pid for replica in supervisor.replicas if replica.pid]
        os.kill(supervisor.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(EngineLostError, match=r"supervisor of service orphans .* is gone.*replica-0\.log"):
            sample_on(engine)
        assert time.monotonic() - began < 60  # without a folder it would be 600
        wait_until_gone(groups)
        engine.close()


def test_everything_ends_when_ascent_serve_is_killed(home: Path, tiny_policy: Callable[..., Path]) -> None:
    serving = Serving(home, tiny_policy())
    serving.wait("ends it")
    supervisor = found("tiny")
    groups = [replica.pid for replica in supervisor.replicas if replica.pid]
    serving.process.kill()
    serving.process.wait()
    wait_until_gone(groups)
    until = time.monotonic() + 120
    while start_ticks(supervisor.pid) == supervisor.started:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert not (record.services_folder() / "tiny").exists()


def test_everything_ends_when_the_process_that_started_it_is_killed(settings: ServiceSettings, home: Path) -> None:
    code = (
        "import json, sys, time\n"
        "from ascent.rollout.service.running import running_service\n"
        "from ascent.rollout.service.settings import from_json\n"
        "with running_service(from_json(json.loads(sys.argv[1])), name='child'):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(settings.to_json())], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    groups = [replica.pid for replica in found("child").replicas if replica.pid]
    owner.kill()
    owner.wait()
    wait_until_gone(groups)


def test_two_ranks_sample_what_one_does(settings: ServiceSettings) -> None:
    """Tensor parallel over two processes on the CPU."""
    greedy = [RolloutRequest(f"g{g}", (10 + g, 20, 30), 1, Sampling(20, temperature=0.0)) for g in range(4)]
    sampled = []
    for ranks in (1, 2):
        with running_service(replace(settings, tensor_parallel=ranks), name=f"tp{ranks}") as address:
            engine = engine_for(address)
            sampled.append(sample(engine, greedy))
            engine.close()
    one, two = sampled
    for place, completion in one.items():
        assert completion.token_ids.tolist() == two[place].token_ids.tolist()
        assert completion.logps == pytest.approx(two[place].logps, abs=1e-4)


@pytest.fixture
def broken(tmp_path: Path, tiny_policy: Callable[..., Path]) -> Path:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_policy(), folder)
    (folder / "model.safetensors").write_bytes(b"not weights")
    return folder


def test_a_server_that_does_not_start_says_why(
    broken: Path, settings: ServiceSettings, ascent: Callable[..., Any]
) -> None:
    with (
        pytest.raises(ServiceStartError, match=r"did not start.*ended with code 1") as raised,
        running_service(replace(settings, engine=replace(settings.engine, model=str(broken))), name="broken"),
    ):
        pytest.fail("it can't have started")
    assert raised.value.log_text
    done = ascent("serve", broken, "--name", "broken")
    assert done.returncode == 2
    assert "its log says:" in done.stderr
    assert "error: service broken: the server did not start: process" in done.stderr
    assert list(record.read_all()) == []
