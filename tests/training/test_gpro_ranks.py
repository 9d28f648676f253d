"""Two training processes with GPRO have the gradient that one has with all their rows, also with sharded weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.training.batches.policies import build_policy
from tests.training.gpro_ranks import SCENARIOS, generations

from ascent.algorithms.gpro import GPRO

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-5
Trained = Callable[[str, int], Any]


def run(names: Sequence[str], folder: Path, environment: dict[str, str]) -> Trained:
    """Train these scenarios in two processes. (name, rank) -> the windows of a rank."""
    import torch

    policy = build_policy("llama", folder / "policy")
    script = Path(__file__).with_name("gpro_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, str(policy), str(folder), *names],
        env={**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return lambda name, rank: torch.load(folder / f"{name}-{rank}.pt", weights_only=True, map_location="cpu")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    names = [name for name, scenario in SCENARIOS.items() if not scenario.slow]
    return run(names, tmp_path_factory.mktemp("gpro-ranks"), dict(os.environ))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, softnpu: Callable[..., dict[str, str]]) -> Trained:
    """On two NPUs in software, on which accelerate shards."""
    names = [name for name, scenario in SCENARIOS.items() if scenario.slow]
    environment = {key: value for key, value in softnpu(devices=2).items() if key != "ACCELERATE_USE_CPU"}
    return run(names, tmp_path_factory.mktemp("gpro-sharded"), environment)


def in_one_process(name: str, folder: Path) -> Any:
    from tests.training.batches.windows import arguments, drive, our_trainer

    scenario = SCENARIOS[name]
    case, policy = scenario.case, build_policy("llama", folder / "policy")
    settings = arguments(folder / "out", **{**case.settings, **case.whole_batches, **scenario.savings})
    prompts = case.ragged.groups * case.generations
    trainer = our_trainer(policy, settings, prompts=prompts, algorithm=GPRO(**scenario.penalty))
    return drive(trainer, generations(case, policy))


def compare(name: str, trained: Trained, folder: Path) -> None:
    """A scenario against its measure, on both ranks."""
    from tests.training.batches.windows import relative_error

    expected = in_one_process(name, folder)
    for rank in (0, 1):
        for window, other in zip(trained(name, rank), expected, strict=True):
            assert window["sharded"] == SCENARIOS[name].sharded
            if "part" not in name:  # each rank has chosen among its own rows
                # A difference of two gradients at a small distance is known to a hundredth, and it is half as long.
                tolerance = 0.05 if "auto" in name else TOLERANCE
                assert relative_error(window["gradient"], other.gradient) <= tolerance
            for figure in ("gradient_penalty/norm", "gradient_penalty/probe/radius"):
                assert (figure in window["logs"]) == (figure in other.logs)
                if figure in other.logs:
                    assert window["logs"][figure] == pytest.approx(other.logs[figure], rel=1e-3)
    for one, other in zip(trained(name, 0), trained(name, 1), strict=True):
        assert relative_error(one["gradient"], other["gradient"]) <= 1e-6


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if not scenario.slow])
def test_two_ranks(usual: Trained, tmp_path: Path, name: str) -> None:
    compare(name, usual, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.slow])
def test_two_ranks_with_sharded_weights(sharded: Trained, tmp_path: Path, name: str) -> None:
    compare(name, sharded, tmp_path)
