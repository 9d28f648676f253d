"""How soon does the quickstart reach a training pass rate of 75 %, with all savings of a step and with none?

    python benchmarks/time_to_learn.py --seeds 0 1 2

For each seed examples/quickstart.yaml is trained twice, one after the other: as it is, and with everything computed
that TRL computes. Counted are steps and seconds of training steps, until the mean pass rate of five steps in a row
reaches the goal. Results are kept in benchmarks/results/time-to-learn.json; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent.config.trl_fields import NOTHING_SAVED
from ascent.host.process import quieten_transformers, set_up_process
from ascent.tracking.run_directory import read_json_lines, write_json

RESULTS = Path(__file__).resolve().parent / "results" / "time-to-learn.json"
GOAL, WINDOW = 0.75, 5
VARIANTS: Mapping[str, Sequence[str]] = {
    "savings": (),
    "nothing-saved": [f"trainer.{name}={json.dumps(value)}" for name, value in NOTHING_SAVED.items()],
}


def main() -> int:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/time-to-learn"))
    parser.add_argument("--table-only", action="store_true")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        _train(args.cell[0], int(args.cell[1]), args.runs)
        return 0
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    for seed in () if args.table_only else args.seeds:
        for variant in VARIANTS:
            name = f"{variant}-{seed}"
            if name not in results:
                command = [sys.executable, __file__, "--runs", str(args.runs), "--cell", variant, str(seed)]
                subprocess.run(command, check=True, stdout=sys.stderr)  # vLLM keeps some of its state in the process
                results[name] = reached(read_json_lines(args.runs / name / "metrics.jsonl"))
                write_json(RESULTS, results)
    print(to_table(results))
    return 0


def reached(lines: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Steps, samples and seconds until the goal; None where it was never reached. And the pass rate at the end."""
    rates = [line["pass_rate"] for line in lines]
    step = next(
        (end for end in range(WINDOW, len(rates) + 1) if statistics.mean(rates[end - WINDOW : end]) >= GOAL), None
    )
    seconds = None if step is None else sum(line["times"]["step"] for line in lines[:step])
    return {
        "steps": step,
        "seconds": seconds,
        "seconds_of_all": sum(line["times"]["step"] for line in lines),
        "pass_rate_at_the_end": statistics.mean(rates[-WINDOW:]),
    }


def to_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown, a line a run."""
    lines = [
        "| | seed | steps to 75 % | seconds to 75 % | seconds of all steps | pass rate at the end |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in sorted(results.items()):
        variant, _, seed = name.rpartition("-")
        reach = ("never", "") if found["steps"] is None else (str(found["steps"]), f"{found['seconds']:.0f}")
        lines.append(
            f"| {variant} | {seed} | {' | '.join(reach)} | {found['seconds_of_all']:.0f} | "
            f"{found['pass_rate_at_the_end']:.1%} |"
        )
    return "\n".join(lines)


def _train(variant: str, seed: int, runs: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from quickstart import train

    set_up_process()
    quieten_transformers()
    settings = (f"model.path=builtin:starter:{seed}", "tracking.evaluate=false", *VARIANTS[variant])
    train(f"{variant}-{seed}", seed, runs, settings)


if __name__ == "__main__":
    sys.exit(main())
