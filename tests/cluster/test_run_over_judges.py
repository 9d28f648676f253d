"""A training whose programs are judged over nodes is the training that they are judged in process for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascent.tracking.rollouts import read_rollouts
from tests.cluster.conftest import FakeCluster
from tests.run_config import write_config

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(1800)]
COMPARED = ("completion_ids", "reward", "parts", "advantage", "kept", "compiled", "outcomes", "error", "sandbox_level")


def run(folder: Path, model: Path, tasks: Path, *settings: str) -> tuple[list[dict[str, Any]], str]:
    """What the training records of every completion, and what it printed."""
    folder.mkdir()
    file = write_config(folder / "run.yaml", model, tasks)
    command = [sys.executable, "-m", "ascent", "train", str(file), "--force", "trainer.use_cpu=true", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = read_rollouts(folder / "runs" / "run" / "rollouts")
    return [{name: row[name] for name in COMPARED} for row in rows], done.stdout + done.stderr


def test_a_training_does_not_notice_where_it_is_judged(
    ray_cluster: FakeCluster, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    near, _ = run(tmp_path / "near", tiny_policy(), task_file)
    address = f"cluster.address={ray_cluster.address}"
    far, said = run(tmp_path / "far", tiny_policy(), task_file, address, "cluster.judge_cpus=1")
    assert "sandbox: 3 slots" in said
    assert len(near) == 24
    assert len({row["reward"] for row in near}) > 1
    assert far == near
