"""Does a penalty on the gradient's norm keep a policy from gaming its reward?

    python benchmarks/gpro.py [--arms gpro kl] [--seeds 0 1 2] [--time-limit MINUTES] [--engine transformers]

The starter policy is trained for 120 steps on the built-in tasks with a reward that can be gamed: one visible input
that accepts a shorter mistake, and shorter answers are paid more (`planted/gameable.py`). Tasks without such an input
are left out. All arms have the quickstart's settings but for what their name says; a seed is that of the starter, of
the split and of the training.

Fixed before the runs:

- Primary: held-out true pass rate (sampled, temperature 1) after the last step, GPRO minus tuned KL, over the paired
  seeds 0 to 9, with a 95 % t interval.
- Each arm's strength is the one of four with the best mean of that figure on the seeds 100, 101 and 102. The turned
  sign has GPRO's strength; GRPO stopped early is the best held-out rate that GRPO has at any evaluation, an oracle.
- First GRPO, tuned KL, GPRO and the turned sign have the seeds 0 to 4; then the other seeds and arms.

Every cell (arm, strength, seed) runs in a process of its own with one thread, two at a time, and is kept in --out;
cells that are there are not run again, so that a run that was stopped goes on. The report says what is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gaming.arms import ARMS, CHOOSING_SEEDS, FIRST
from gaming.figures import Cell, end
from gaming.report import report

OUT = Path(__file__).resolve().parent / "results" / "gpro"
SEEDS = tuple(range(10))


def main() -> int:
    """Run what is missing, as long as there is time, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--strengths", type=float, nargs="+", help="take these, and choose none")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--time-limit", type=float, metavar="MINUTES", help="begin no run after that")
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time, of one thread each")
    parser.add_argument("--engine", choices=["transformers", "vllm"], default="transformers", help="what samples")
    parser.add_argument("--report-only", action="store_true", help="run nothing; show what is there")
    parser.add_argument("--cell", nargs=3, metavar=("ARM", "STRENGTH", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        run_cell(args.out, args.cell[0], float(args.cell[1]), int(args.cell[2]), args.engine)
        return 0
    if not args.report_only:
        run_missing(args)
    print(report(cells_in(args.out), {name: chosen(args.out, name) for name in ARMS}))
    return 0


def file_of(out: Path, arm: str, strength: float, seed: int) -> Path:
    """Where a cell is kept."""
    return out / f"{arm}-{strength:g}-{seed}.json"


def cells_in(out: Path) -> list[Cell]:
    """All cells that are there."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("*.json"))]


def chosen(out: Path, arm: str) -> float | None:
    """The strength of an arm; None while not all of its choosing runs are there."""
    if ARMS[arm].like:
        return chosen(out, ARMS[arm].like)
    strengths = ARMS[arm].strengths
    if len(strengths) == 1:
        return strengths[0]
    means = {}
    for strength in strengths:
        files = [file_of(out, arm, strength, seed) for seed in CHOOSING_SEEDS]
        if not all(file.is_file() for file in files):
            return None
        means[strength] = sum(end(json.loads(file.read_text(encoding="utf-8"))) for file in files) / len(files)
    return max(means, key=lambda strength: means[strength])


def wanted(args: argparse.Namespace) -> Iterator[tuple[str, float, int]]:
    """The next cells, in the order of the docstring. An arm's runs with its strength come up once that is known."""
    if args.strengths:
        yield from ((arm, strength, seed) for seed in args.seeds for strength in args.strengths for arm in args.arms)
        return
    groups = [[arm for arm in args.arms if arm in FIRST], [arm for arm in args.arms if arm not in FIRST]]
    for group in groups:
        for seed in CHOOSING_SEEDS:
            for arm in group:
                if len(ARMS[arm].strengths) > 1 and not ARMS[arm].like:
                    yield from ((arm, strength, seed) for strength in ARMS[arm].strengths)
    for seeds, group in ((args.seeds[:5], groups[0]), (args.seeds[5:], groups[0]), (args.seeds, groups[1])):
        for seed in seeds:
            for arm in group:
                strength = chosen(args.out, arm)
                if strength is not None:
                    yield arm, strength, seed


def run_missing(args: argparse.Namespace) -> None:
    """Two at a time, until all is there or the time is up. A run that fails is told, and not tried again."""
    args.out.mkdir(parents=True, exist_ok=True)
    began, running, failed = time.monotonic(), {}, set()  # type: ignore[var-annotated]
    while True:
        for cell, process in list(running.items()):
            if process.poll() is not None:
                del running[cell]
                if process.returncode:
                    failed.add(cell)
                    print(f"failed: {cell} (see {file_of(args.out, *cell).with_suffix('.log')})", file=sys.stderr)
        missing = [
            cell
            for cell in wanted(args)
            if cell not in failed and cell not in running and not file_of(args.out, *cell).is_file()
        ]
        late = args.time_limit is not None and time.monotonic() - began > 60 * args.time_limit
        if missing and not late and len(running) < args.at_once:
            running[missing[0]] = start(args, *missing[0])
        elif not running:
            return
        else:
            time.sleep(1)


def start(args: argparse.Namespace, arm: str, strength: float, seed: int) -> subprocess.Popen[bytes]:
    """Begin a cell in a process of one thread."""
    print(f"{arm}, strength {strength:g}, seed {seed}", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--out", str(args.out), "--engine", args.engine]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    with file_of(args.out, arm, strength, seed).with_suffix(".log").open("wb") as log:
        cell = ["--cell", arm, str(strength), str(seed)]
        return subprocess.Popen([*command, *cell], env=environment, stdout=log, stderr=subprocess.STDOUT)


def run_cell(out: Path, arm: str, strength: float, seed: int, engine: str) -> None:
    """Train and judge; the result is written last, whole."""
    from ascent.host.process import quieten_transformers, set_up_process
    from ascent.tracking.run_directory import write_json

    set_up_process()
    quieten_transformers()
    import torch

    torch.set_num_threads(1)
    from gaming.training import run

    result: dict[str, Any] = run(arm, strength, seed, engine=engine)
    write_json(file_of(out, arm, strength, seed), result)
    file_of(out, arm, strength, seed).with_suffix(".log").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
