"""Whether GPRO's second gradient is one on this device: a short training that looks for its radius."""

from __future__ import annotations

import math
from pathlib import Path

from ascent.host.children import run_child
from ascent.selftest.report import CheckResult
from ascent.selftest.training_checks import failed, write_config
from ascent.tracking.run_directory import read_metrics

_NAME = "second gradient (gpro)"


def second_gradient(folder: Path, *, on_cpu: bool) -> CheckResult:
    """Three steps with `algorithm: gpro`: a radius is found, and the penalty's part is as long as was asked."""
    config = write_config(folder, engine="transformers", steps=3, save_steps=1000)
    arguments = ["train", str(config), "algorithm=gpro", "trainer.bf16=false", "tracking.name=gpro", "--force"]
    ended = run_child(["ascent", *arguments], folder / "train.log", 300, on_cpu=on_cpu)
    lines = read_metrics(folder / "runs" / "gpro" / "metrics.jsonl")
    if ended.code != 0 or len(lines) != 3:
        return failed(_NAME, ended, f"ended after {len(lines)} of 3 steps, exit code {ended.code}")
    shares = [line["gradient_penalty/share"] for line in lines if not line["gradient_penalty/skipped"]]
    probed = [line for line in lines if "gradient_penalty/probe/cosine" in line]
    good = bool(shares) and bool(probed) and all(math.isfinite(each) and 0.9 < each < 1.1 for each in shares)
    what = "a radius is found, and the penalty's part is as long as the gradient"
    if not good:
        what = (
            f"the penalty's parts were {shares} of the gradient (1 is asked), from {len(probed)} searches of the radius"
        )
    figures = {name: probed[0][f"gradient_penalty/probe/{name}"] for name in ("radius", "cosine")} if probed else {}
    return CheckResult(_NAME, "passed" if good else "failed", ended.seconds, what, figures)
