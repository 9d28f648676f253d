"""Two training processes over gloo, one of which has numbers that aren't finite: both skip, and both know why."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[3]


def check_ranks(policy: Path, folder: Path, environment: Mapping[str, str], *options: str) -> None:
    """Train on two ranks, and look at what both saw."""
    script = Path(__file__).with_name("guard_of_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [*command, str(policy), str(folder), *options], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["finite"]
    assert first["bad"] == 3
    assert first["step"] == 6
    assert "the last 2 steps (to step 6) were not finite" in first["ended"]
    sums = first["sums"]
    assert [before != after for before, after in itertools.pairwise(sums[:5])] == [False, True, True, False]
    for step, kind, where in (
        (2, "output", "model.layers.1.mlp"),
        (5, "output", "model.layers.1.mlp"),
        (6, "gradient", "model.layers.0.mlp.up_proj"),
    ):
        kept = folder / "out" / "bad-steps" / str(step)
        found = json.loads((kept / "step.json").read_text())["finding"]
        assert (found["kind"], found["where"], found["rank"]) == (kind, where, 1)
        assert all((kept / f"rank{rank}.safetensors").is_file() for rank in (0, 1))


def test_all_ranks_skip_alike_and_name_the_one(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "OMP_NUM_THREADS": "1"}
    check_ranks(tiny_policy(), tmp_path, environment)
