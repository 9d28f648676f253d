"""Two processes with other rows each share TRL's gradient; with sharded weights both run the layers equally often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # what the default tests train on two ranks goes the same ways
ROOT = Path(__file__).resolve().parents[3]


def test_two_ranks_have_trls_gradient(tmp_path: Path) -> None:
    script = Path(__file__).with_name("packed_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert len(ranks[0]) == 3 * 6
    for name in ranks[0]:
        seen = [rank[name] for rank in ranks]
        assert all(each["apart"] < 1e-5 for each in seen), (name, seen)
        if not name.startswith("replicated"):
            assert seen[0]["runs"] == seen[1]["runs"], name
        if "both" in name:
            assert all(each["way"] != "trl" for each in seen), (name, seen)
        if "hole" in name:
            assert [each["way"] == "trl" for each in seen] == [False, True], (name, seen)
