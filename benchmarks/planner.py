"""How near is the memory plan to what is taken? Trainings drawn by seed on the software NPU, whose allocator counts.

    python benchmarks/planner.py [--grid 60] [--gpro 0] [--calibration 24] [--seed 1] [--json] [--keep FILE]
                                 [--from FILE]

Small models of several architectures are trained for two steps with real generation, loss, backward pass and
optimizer, at settings drawn by seed: precision, LoRA, checkpointing, batch, lengths, budgets, shared prompts and more.
The plan's estimated terms are calibrated on one set of models; the grid is of others. Prints a line for each
setting and how far off the plan is. `--gpro` adds trainings with a second gradient; with `--calibration 0` plans are
judged as they are. `--keep` writes what was measured, `--from` plans anew what was measured before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from planning.drawing import Drawn, draw  # noqa: E402

from ascent.memory import Penalty, Plan, plan  # noqa: E402
from ascent.memory.calibration import Calibration, Measured, fit  # noqa: E402
from ascent.memory.cards import exactly  # noqa: E402
from ascent.memory.measured import PLANNED, near_peak  # noqa: E402

SOFTWARE_NPU = exactly(64 * 2**30)


@dataclass(frozen=True, slots=True)
class Judged:
    """One training of the grid: the largest peak that was planned and that was measured, in bytes."""

    drawn: Drawn
    planned: int
    measured: int
    verdict: str

    @property
    def off(self) -> float:
        """The share by which the plan is above (+) or below (-) what was taken."""
        return self.planned / self.measured - 1.0


def main() -> None:
    """Measure, calibrate, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--grid", type=int, default=60)
    parser.add_argument("--gpro", type=int, default=0)
    parser.add_argument("--calibration", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--from", type=Path, dest="known")
    args = parser.parse_args()
    if args.known is not None:
        measured = [json.loads(line) for line in args.known.read_text("utf-8").splitlines()]
    else:
        sets = (("calibration", args.calibration), ("grid", args.grid), ("gpro", args.gpro))
        asked = [
            {"set": which, "seed": args.seed, "count": count, "number": number}
            for which, count in sets
            for number in range(count)
        ]
        measured = []
        for each in measure(asked):
            measured.append(each)
            if args.keep is not None:
                with args.keep.open("a", encoding="utf-8") as kept:
                    kept.write(json.dumps(each) + "\n")
    of_calibration = [each for each in measured if each["set"] == "calibration"]
    corrections = calibrated(of_calibration) if of_calibration else None
    judged = [judge(each, corrections) for each in measured if each["set"] != "calibration"]
    found = summary(judged)
    if corrections is not None:
        before = [judge(each, None) for each in measured if each["set"] != "calibration"]
        found |= {"factors": dict(corrections.factors), "uncalibrated": summary(before)}
    if args.json:
        print(json.dumps({"schema": "ascent.planner/1", **found}))
        return
    for one in judged:
        print(_row(one))
    print(json.dumps(found, indent=1), *by_kind(judged), sep="\n")


def measure(asked: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each training's peaks, from one process with the software NPU."""
    built = subprocess.run(
        [sys.executable, str(ROOT / "testing/softnpu/build.py")], capture_output=True, text=True, check=True
    ).stdout.strip()
    paths = (built, str(ROOT / "src"), str(ROOT / "benchmarks"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SOFTNPU_DEVICES": "1", "CI": "1"}
    for hiding in (
        "SOFTNPU_MEMORY",
        "ASCEND_RT_VISIBLE_DEVICES",
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
        "ACCELERATE_USE_CPU",
    ):
        environment.pop(hiding, None)
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    with subprocess.Popen(
        [sys.executable, "-m", "planning.training"],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(lines)
        child.stdin.close()
        for number, line in enumerate(child.stdout):
            print(f"measured {number + 1} of {len(asked)}", file=sys.stderr)
            yield json.loads(line)
    if child.returncode:
        raise SystemExit(f"the trainings ended with exit code {child.returncode}; run one by hand to see why")


def drawn_of(measured: dict[str, Any]) -> Drawn:
    """The training that was measured."""
    return draw(measured["set"], measured["seed"], measured["count"])[measured["number"]]


def calibrated(measured: list[dict[str, Any]]) -> Calibration:
    """The corrections that the calibration's models give."""
    found: list[Measured] = []
    for each in measured:
        drawn = drawn_of(each)
        made = plan(drawn.model, SOFTWARE_NPU, drawn.settings)
        of_run = []
        for clock, names in PLANNED.items():
            if each["peaks"].get(clock) and clock != "sync":
                phase = max((one for one in made.phases if one.name in names), key=lambda one: one.total)
                of_run.append(Measured(phase, each["peaks"][clock]))
        found += near_peak(of_run)
    return fit("software NPU", found)


def judge(measured: dict[str, Any], corrections: Calibration | None) -> Judged:
    """One training of the grid."""
    drawn = drawn_of(measured)
    made: Plan = plan(drawn.model, SOFTWARE_NPU, drawn.settings, calibration=corrections)
    return Judged(drawn, made.peak.total, max(measured["peaks"].values()), made.verdict)


def summary(judged: list[Judged]) -> dict[str, Any]:
    """How far off the plan was."""
    offs = sorted(each.off for each in judged)
    fits = [each.off for each in judged if each.verdict == "fits"]
    return {
        "settings": len(judged),
        "within 10 %": sum(abs(off) <= 0.1 for off in offs) / len(offs),
        "within 5 %": sum(abs(off) <= 0.05 for off in offs) / len(offs),
        "most under": offs[0],
        "most over": offs[-1],
        "median": statistics.median(offs),
        "most under where it says fits": min(fits, default=0.0),
    }


def by_kind(judged: list[Judged]) -> list[str]:
    """Lines of markdown: how far off, by what is trained and how."""
    kinds: dict[str, list[float]] = {}
    for each in judged:
        trained = each.drawn.settings.trained
        model = "mixture of experts" if each.drawn.model.experts else "dense"
        how = "all weights" if trained.lora is None else "LoRA"
        kept = "checkpointed" if trained.checkpointing else "nothing checkpointed"
        kinds.setdefault(f"{model}, {how}, {kept}", []).append(each.off)
    lines = ["| | settings | within 10 % | most under | median | most over |", "|---|---|---|---|---|---|"]
    for kind, offs in [*sorted(kinds.items()), ("all", [each.off for each in judged])]:
        near = sum(abs(off) <= 0.1 for off in offs)
        shares = " | ".join(f"{share:+.1%}" for share in (min(offs), statistics.median(offs), max(offs)))
        lines.append(f"| {kind} | {len(offs)} | {near} | {shares} |")
    return lines


def _row(each: Judged) -> str:
    trained, batch, config = each.drawn.settings.trained, each.drawn.settings.batch, each.drawn.config
    how = "full" if trained.lora is None else f"r{trained.lora}"
    return (
        f"{each.drawn.number:3d} {config['model_type']:10s} {config['num_hidden_layers']}x{config['hidden_size']:<4d} "
        f"V{config['vocab_size']:<6d} {trained.dtype[:4]}{'+amp' if trained.autocast else '    '} {how:5s}"
        f"{'ckpt' if trained.checkpointing else '    '} {'ref' if trained.reference else '   '} "
        f"{'' if trained.penalty is None else _of_penalty(trained.penalty)}{trained.optimizer:18s}"
        f"{batch.micro_batch:3d}x{batch.accumulation} {batch.prompt}+{batch.completion:<4d} budget {batch.budget!s:5} "
        f"{'shared' if batch.shared_prompt else '      '} {each.planned / 2**20:8.1f} {each.measured / 2**20:8.1f} MiB "
        f"{each.off:+.1%}"
    )


def _of_penalty(penalty: Penalty) -> str:
    return (
        f"{penalty.moves:18s} {'part' if penalty.fraction < 1.0 else '    '} {'auto' if penalty.searches else '    '} "
    )


if __name__ == "__main__":
    main()
