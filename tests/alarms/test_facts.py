"""What alarms know of a run before its first step."""

import json
from pathlib import Path

from ascent.alarms.facts import accelerator_of
from ascent.tracking import attempts


def started_on(run: Path, accelerator: str) -> None:
    """What the machine that starts a run says of itself."""
    told = {"environment": {"accelerator": accelerator}}
    (run / "environment.json").write_text(json.dumps(told), encoding="utf-8")


def test_the_device_is_the_clusters_and_not_that_of_the_machine_that_started_the_run(tmp_path: Path) -> None:
    assert accelerator_of(tmp_path) is None
    started_on(tmp_path, "cpu")
    assert accelerator_of(tmp_path) == "cpu"
    attempts.begin(tmp_path, ranks=2)  # of one machine, which goes on by itself
    assert accelerator_of(tmp_path) == "cpu"
    attempts.begin(tmp_path, ranks=2, nodes=["10.0.0.1"], accelerator="npu")
    assert accelerator_of(tmp_path) == "npu"
    (tmp_path / "attempts.jsonl").write_text("cut o", encoding="utf-8")
    assert accelerator_of(tmp_path) == "cpu"
