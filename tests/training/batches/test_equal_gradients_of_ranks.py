"""Two training processes have the gradient that TRL's trainer has in one process with all their rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.training.batches.gradients_of_ranks import SCENARIOS, Scenario, generations
from tests.training.batches.policies import build_policy

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[3]
TOLERANCE = 1e-5
USUAL = [name for name, scenario in SCENARIOS.items() if not scenario.slow]
SLOW = [name for name, scenario in SCENARIOS.items() if scenario.slow and not scenario.sharded]
SHARDED = [name for name, scenario in SCENARIOS.items() if scenario.sharded]
Trained = Callable[[str, int], Any]


def run(names: Sequence[str], folder: Path, variables: Mapping[str, str] = os.environ) -> Trained:
    """Train these scenarios in two processes of this environment. (name, rank) -> the windows of a rank."""
    import torch

    policy = build_policy("llama", folder / "policy")
    script = Path(__file__).with_name("gradients_of_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {
        **variables,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), variables.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*command, str(policy), str(folder), *names], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return lambda name, rank: torch.load(folder / f"{name}-{rank}.pt", weights_only=True, map_location="cpu")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run(USUAL, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run(SLOW, tmp_path_factory.mktemp("slow-ranks"))


def in_one_process(scenario: Scenario, folder: Path) -> list[Any]:
    """TRL's windows of all rows, each as one micro-batch."""
    from tests.training.batches.windows import arguments, drive, stock_trainer

    case, policy = scenario.case, build_policy("llama", folder / "policy")
    settings = arguments(folder / "out", **{**case.settings, **case.whole_batches})
    trainer = stock_trainer(policy, settings, prompts=case.ragged.groups * case.generations)
    return drive(trainer, generations(scenario, policy))


def compare(name: str, trained: Trained, folder: Path) -> None:
    """A scenario against its measure, on both ranks."""
    from tests.training.batches.windows import relative_error

    scenario = SCENARIOS[name]
    if scenario.case.whole:
        windows = in_one_process(scenario, folder)
        theirs = [(window.gradient, window.logs["loss"]) for window in windows]
    else:
        theirs = [(window["gradient"], window["loss"]) for window in trained(f"{name}-of-trl", 0)]
    for rank in (0, 1):
        mine = trained(name, rank)
        assert len(mine) == len(theirs)
        for window, (gradient, loss) in zip(mine, theirs, strict=True):
            assert gradient.any()
            assert relative_error(window["gradient"], gradient) <= TOLERANCE
            assert window["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
    for one, other in zip(trained(name, 0), trained(name, 1), strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], nan_ok=True), "both ranks log the same"


@pytest.mark.parametrize("name", [name for name in USUAL if SCENARIOS[name].savings is not None])
def test_two_ranks(usual: Trained, tmp_path: Path, name: str) -> None:
    compare(name, usual, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_two_ranks_replicated(slow: Trained, tmp_path: Path, name: str) -> None:
    compare(name, slow, tmp_path)


@pytest.mark.slow
def test_two_ranks_with_sharded_weights(softnpu: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    """On two NPUs in software: accelerate shards on accelerators only."""
    variables = {key: value for key, value in softnpu(devices=2).items() if key != "ACCELERATE_USE_CPU"}
    trained = run(SHARDED, tmp_path, variables)
    for name in SHARDED:
        compare(name, trained, tmp_path)
