"""The engine's process: what it answers, and what becomes of it when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tuning.standin import BASE, MACHINE

from ascent.rollout.engine import EngineSettings
from ascent.tuning.engines import ChildEngines, engine_settings
from ascent.tuning.probe import Group, Limits, Probe, TrialError, probe_from_json, probe_to_json
from ascent.tuning.space import Point
from ascent.tuning.trial import EngineChild
from ascent.tuning.workload import Workload
from ascent.types import Sampling

SETTINGS = EngineSettings("nowhere", "float32", 64)
GROUPS = (Group((1, 2, 3), (10, 20)), Group((4, 5), (30, 40)))
CHILD = Path(__file__).with_name("standin_child.py")


def child(tmp_path: Path, how: str) -> EngineChild:
    """A child that fails in such a way at its first probe."""
    return EngineChild(tmp_path / "engines.log", command=[sys.executable, str(CHILD), how])


def test_what_it_answers(tmp_path: Path) -> None:
    with child(tmp_path, "well") as engine:
        assert engine.look().cores == 2
        assert engine.open(SETTINGS) == 0.1
        found = engine.probe(Probe(GROUPS))
    assert (found.tokens, found.sequences, found.prompt_tokens) == (100, 4, 5)
    assert found.lengths == ((10, 20), (30, 40))
    assert found.steps == ((2, 0.5),)
    assert found.tokens_per_second == 100
    assert found.stats.kv_cache_use == 0.25


@pytest.mark.parametrize(
    ("how", "why", "said"),
    [
        ("crash", "crash", "ended with 1(.|\n)*Illegal instruction"),
        ("memory", "memory", "can't allocate memory"),
        ("killed", "memory", "was killed"),
        ("refused", "refused", "block_size=7"),
    ],
)
def test_failures_are_told_apart(tmp_path: Path, how: str, why: str, said: str) -> None:
    with child(tmp_path, how) as engine:
        engine.open(SETTINGS)
        with pytest.raises(TrialError, match=said) as caught:
            engine.probe(Probe(GROUPS))
        assert caught.value.why == why
        with pytest.raises((TrialError, ValueError)):  # nothing stands there any more
            engine.probe(Probe(GROUPS))


def test_a_hang_is_ended(tmp_path: Path) -> None:
    begun = time.monotonic()
    with child(tmp_path, "hang") as engine, pytest.raises(TrialError, match="no answer within 1 s") as caught:
        engine.probe(Probe(GROUPS), seconds=1.0)
    assert caught.value.why == "hang"
    assert time.monotonic() - begun < 20


def test_it_does_not_outlive_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from ascent.tuning.trial import EngineChild; "
        f"engine = EngineChild(Path({str(tmp_path / 'log')!r}), command=[sys.executable, {str(CHILD)!r}, 'hang']); "
        'engine._send(b\'{"do": "probe"}\\n\'); print(engine._process.pid, flush=True); time.sleep(600)'
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 15
    while _runs(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


def test_a_probe_survives_the_protocol() -> None:
    probe = Probe(
        GROUPS, Sampling(None, 0.7, 0.9, 5, 0.1, 1.1, (7, 8)), True, 2, Limits(3, 64), 9.5, seeded=True, steps=True
    )
    assert probe_from_json(probe_to_json(probe)) == probe
    assert probe_from_json(probe_to_json(Probe(GROUPS))) == Probe(GROUPS)


def engines(tmp_path: Path, how: str = "well") -> ChildEngines:
    """The search's engines over stand-in children."""
    return ChildEngines(
        SETTINGS,
        MACHINE,
        Workload(GROUPS, "a test"),
        Sampling(None),
        False,
        tmp_path / "engines.log",
        20.0,
        start=lambda variables: EngineChild(
            tmp_path / "engines.log", variables, command=[sys.executable, str(CHILD), how]
        ),
    )


def test_replicas_sample_a_part_each(tmp_path: Path) -> None:
    with engines(tmp_path) as made:
        made.open(replace(BASE, replicas=2))
        found = made.probe(BASE, 1.0, None)
    assert (found.tokens, found.sequences) == (100, 4)
    assert found.seconds == 0.7  # of the slower one: 70 tokens
    assert found.peak_bytes == 1  # a core for each of the two


def test_a_share_shortens_completions(tmp_path: Path) -> None:
    with engines(tmp_path) as made:
        made.open(BASE)
        assert made.probe(BASE, 0.25, None).tokens == 2 + 5 + 8 + 10


def test_one_replica_that_fails_ends_all(tmp_path: Path) -> None:
    with engines(tmp_path, "crash") as made:
        made.open(replace(BASE, replicas=2))
        with pytest.raises(TrialError):
            made.probe(BASE, 1.0, None)
        assert not made._children


def test_the_environment_of_threads_that_are_bound() -> None:
    assert replace(BASE, binding="cores").environment == {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    assert BASE.environment == {}
    assert not set(BASE.environment) & set(os.environ)


def test_a_points_settings_reach_the_engine() -> None:
    point = Point(8, 512, False, False, False, 32, 64, 0.5, 1, "none", 1, 2)
    made = engine_settings(SETTINGS, point)
    assert (made.max_num_seqs, made.max_num_batched_tokens, made.prefix_caching) == (8, 512, False)
    assert (made.chunked_prefill, made.enforce_eager, made.block_size) == (False, False, 32)
    assert (made.kv_cache_bytes, made.engine_share, made.threads, made.tensor_parallel) == (64 * 2**20, 0.5, 1, 2)
