"""The self-test: its checks in their order. A check that fails ends none of the others."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ascent import __version__
from ascent.environment import display, preflight, smoke
from ascent.errors import InputError
from ascent.host.children import run_child
from ascent.rollout.weights.verify.expected_differences import expected_difference
from ascent.selftest import bad_step_check, packing_check, rehearsal_check, second_gradient_check, training_checks
from ascent.selftest.report import CheckResult, SelftestReport
from ascent.selftest.training_checks import failed

Tell = Callable[[CheckResult], None]
_SAME_SEED = 0.75  # a probability's last digits depend on the batch, which changes a token now and then


def selftest(device: str, steps: int, tell: Tell = lambda result: None) -> SelftestReport:
    """Run every check on `device`; `tell` hears of each result at once.

    Raises InputError when training would use another device here.
    """
    on_cpu = device == "cpu"
    if on_cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    results: list[CheckResult] = []

    def add(*found: CheckResult) -> None:
        for result in found:
            results.append(result)
            tell(result)

    checked = preflight(weight_updates=True)
    add(_environment(checked))
    with tempfile.TemporaryDirectory(prefix="ascent-selftest-") as name:
        folder = Path(name)
        probe, there = _probe(folder, device, on_cpu)
        add(probe)
        if there:
            add(_smoke(), *_engine(folder, on_cpu), _sleep(folder, on_cpu))
            found = _read(folder, "weights")
            engine = "vllm" if found else "transformers"
            low = found.get("dtype") == "bfloat16" or _read(folder, "probe")["bf16"]  # training is in bf16 where it can
            dtype = "bfloat16" if low else "float32"
            add(*training_checks.train(folder, steps, on_cpu=on_cpu, engine=engine, dtype=dtype))
            add(training_checks.resume(folder, on_cpu=on_cpu))
            add(packing_check.packing(folder, on_cpu=on_cpu))
            add(bad_step_check.bad_step(folder, on_cpu=on_cpu))
            add(second_gradient_check.second_gradient(folder, on_cpu=on_cpu))
            add(rehearsal_check.rehearsal(folder, on_cpu=on_cpu))
    shown = [finding for finding in checked.findings if finding.level in ("error", "warning")]
    return SelftestReport(
        __version__, device, display.machine(checked.environment), display.findings(shown), tuple(results)
    )


def _environment(checked: Any) -> CheckResult:
    errors = [finding.what for finding in checked.errors]
    what = "; ".join(errors) or "the doctor finds nothing that stops a run"
    return CheckResult("environment", "failed" if errors else "passed", checked.seconds, what)


def _probe(folder: Path, device: str, on_cpu: bool) -> tuple[CheckResult, bool]:
    ended = run_child(["ascent.selftest.probe", str(folder), device], folder / "probe.log", 180, on_cpu=on_cpu)
    found = _read(folder, "probe")
    if found and found["kind"] != device:
        raise InputError(
            f"--device {device}, but torch trains on {found['kind']} here ({found['name']})",
            "Run: ascent doctor. It says what is missing.",
        )
    if ended.code != 0 or not found:
        return failed("device", ended, f"torch and the tiny policy: exit code {ended.code}"), False
    limited = f", {found['visible']}" if found["visible"] else ""
    what = f"{found['count']} x {found['name']}{limited}, bfloat16 {'native' if found['bf16'] else 'not native'}"
    figures = {"GiB in use": found["used_bytes"] / 2**30, "GiB in all": found["total_bytes"] / 2**30}
    return CheckResult("device", "passed", ended.seconds, what, figures), True


def _smoke() -> CheckResult:
    begun = time.monotonic()
    results = smoke.run([step for step in smoke.STEPS if "vLLM" not in step.name])
    seconds = time.monotonic() - begun
    findings = [smoke.as_finding(result) for result in results]
    last = results[-1]
    if last.outcome in ("failed", "timeout"):
        return CheckResult("smoke test", "failed", seconds, findings[-1].what, detail="\n".join(findings[-1].evidence))
    skipped = [finding.what for finding, result in zip(findings, results, strict=True) if result.outcome == "skipped"]
    names = ", ".join(result.step for result in results if result.outcome == "passed")
    return CheckResult("smoke test", "passed", seconds, "; ".join([f"passed: {names}", *skipped]))


def _engine(folder: Path, on_cpu: bool) -> list[CheckResult]:
    """Engine against transformers, as loaded and after new weights; and seeds, where prompts are cut."""
    equal, score = "engine and trainer compute alike", "engine and trainer score alike"
    sync, seeds = "new weights reach the engine", "seeds hold"
    ended = run_child(
        ["ascent.selftest.engine_child", str(folder), "weights"], folder / "weights.log", 300, on_cpu=on_cpu
    )
    found = _read(folder, "weights")
    if ended.code != 0 or not found:
        why = "the check before it failed"
        skipped = [CheckResult(name, "skipped", 0.0, why) for name in (score, sync, seeds)]
        return [failed(equal, ended, f"exit code {ended.code}"), *skipped]
    limit = expected_difference(found["dtype"], found["dtype"]).usual
    unit = f"mean log-probability difference at most {limit:g} ({found['dtype']}, vLLM on {found['platform']})"
    reached = found["updated_mean"] <= limit and found["stale_mean"] > 10 * limit
    return [
        CheckResult(
            equal,
            "passed" if found["loaded_mean"] <= limit else "failed",
            ended.seconds,
            unit,
            {"mean": found["loaded_mean"], "largest": found["loaded_max"], "tokens/s": found["tokens_per_second"]},
        ),
        CheckResult(
            score,
            "passed" if found["scored_mean"] <= limit else "failed",
            0.0,
            f"{unit}, of given tokens",
            {"mean": found["scored_mean"], "largest": found["scored_max"]},
        ),
        CheckResult(
            sync,
            "passed" if reached else "failed",
            0.0,
            unit + ", and far from the old weights",
            {"mean": found["updated_mean"], "largest": found["updated_max"], "old weights": found["stale_mean"]},
        ),
        CheckResult(
            seeds,
            "passed" if found["same_seed"] >= _SAME_SEED else "failed",
            0.0,
            f"of prompts that take several engine steps, at least {_SAME_SEED:.0%} go on as they do alone",
            {"the same": found["same_seed"]},
        ),
    ]


def _sleep(folder: Path, on_cpu: bool) -> CheckResult:
    name = "sleep and wake"
    ended = run_child(["ascent.selftest.engine_child", str(folder), "sleep"], folder / "sleep.log", 300, on_cpu=on_cpu)
    found = _read(folder, "sleep")
    if ended.code != 0 or not found:
        return failed(name, ended, f"exit code {ended.code}")
    if "same" not in found:
        return CheckResult(name, "skipped", ended.seconds, f"vLLM has no sleep mode on {found['platform']}")
    what = "greedy tokens are the same after sleep" if found["same"] else "greedy tokens differ after sleep"
    good = found["same"] and found["freed_gib"] > 0
    figures = {"GiB freed": found["freed_gib"]}
    return CheckResult(name, "passed" if good else "failed", ended.seconds, what, figures)


def _read(folder: Path, name: str) -> dict[str, Any]:
    """What a child process wrote; empty when it did not."""
    file = folder / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
