"""`ascent train` whose numbers stay bad: it ends in words and with a checkpoint, and goes on from there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.run_config import write_config

from ascent.cli import main
from ascent.tracking.run_directory import read_metrics

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


def test_a_run_ends_in_words_and_goes_on(
    tiny_policy: Callable[..., Path],
    task_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import torch

    from ascent.training import run as runs
    from ascent.training.trainer import GRPOTrainer

    spoilt = True

    class Spoilt(GRPOTrainer):
        """NaN in a layer of every training pass from the second step on."""

        def __init__(self, *positional: Any, **keywords: Any) -> None:
            super().__init__(*positional, **keywords)
            layer = self.model.get_submodule("model.layers.1")
            layer.register_forward_hook(self._spoil, prepend=True)

        def _spoil(self, _: Any, __: Any, output: Any) -> Any:
            bad = spoilt and self.state.global_step > 0 and torch.is_grad_enabled()
            tensor = output if isinstance(output, torch.Tensor) else output[0]
            return tensor * math.nan if bad else output

    monkeypatch.setattr(runs, "GRPOTrainer", Spoilt)
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=6)
    run = tmp_path / "runs" / "run"
    assert main(["train", str(config), "tracking.evaluate=false", "trainer.max_bad_steps=2"]) == 2
    told = capfd.readouterr().err
    assert told.count("error: the run ended: the gradients of the last 2 steps (to step 3) were not finite") == 1
    assert "Traceback" not in told
    assert f"ascent train --resume {run}" in told
    assert f"repeat it with: ascent replay {run} 2" in told
    assert not (run / "model").exists(), "it is no trained model"
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["numerics/bad_step"] for line in lines] == [0, 1, 1]
    raw = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [raw[1][name] for name in ("grad_norm", "loss", "entropy")] == ["nan", "nan", "nan"]
    assert math.isnan(lines[1]["grad_norm"])
    spoilt = False
    assert main(["train", "--resume", str(run)]) == 0
    capfd.readouterr()
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["numerics/bad_step"] for line in lines] == [0, 1, 1, 0, 0, 0]
    assert [path.name for path in sorted((run / "bad-steps").iterdir())] == ["2", "3"]
    about = json.loads((run / "bad-steps" / "3" / "step.json").read_text())
    assert about["weights"] == "2", "no step was made in between"
