"""How soon do alarms find a fault, and how often do they tell of one that isn't there?

    python benchmarks/alarms.py --seeds 11 12 13 14 15 --time-limit 3600
    python benchmarks/alarms.py --series 1000

The first trains the quickstart with each planted fault (`planted/faults.py`) and without one, at most 80 steps with a
fault and 150 without, each run with one thread, two at a time. Results are kept in benchmarks/results/alarms/, a file a
run, and runs that are there are not run again, so it can be stopped and gone on with. The second folds made-up healthy
series of 1,000 steps (`planted/healthy_series.py`). Seeds below 10 served to choose thresholds and count for nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from planted.faults import FAULTS, RUNS, Planted  # noqa: E402
from planted.healthy_series import healthy_series  # noqa: E402

from ascent.alarms.fold import fold  # noqa: E402
from ascent.alarms.line import Line  # noqa: E402
from ascent.errors import InputError  # noqa: E402
from ascent.tracking.run_directory import write_json, write_text  # noqa: E402

RESULTS = FOLDER / "results" / "alarms"
SERIES = FOLDER / "results" / "alarms-series.json"
CONFIG = FOLDER.parent / "examples" / "quickstart.yaml"
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"
SEEDS = (11, 12, 13, 14, 15)
HEALTHY_SEEDS = 3
SERIES_STEPS = 1000
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main() -> int:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="begin no run after so long")
    parser.add_argument("--series", type=int, metavar="N", help="fold N made-up healthy series instead")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, a thread each (default: 2)")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="keep the run directories there")
    parser.add_argument("--table-only", action="store_true", help="run nothing; show what is there")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"put the table between {BEGIN} and {END}")
    parser.add_argument("--cell", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        run_cell(args.cell[0], int(args.cell[1]), args.runs)
        return 0
    if args.series:
        write_json(SERIES, fold_series(args.series, args.jobs))
    elif not args.table_only:
        run_missing(cells(args.faults, args.seeds), args.jobs, args.time_limit, args.runs)
    table = to_table(args.seeds)
    print(table)
    if args.write:
        write_between_marks(args.write, table)
    return 0


def cells(names: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
    """What is to be run, seed by seed; of healthy runs there are three seeds."""
    return [
        (name, seed) for place, seed in enumerate(seeds) for name in names if name in FAULTS or place < HEALTHY_SEEDS
    ]


def result_file(name: str, seed: int) -> Path:
    """Where a run's result is kept."""
    return RESULTS / f"{name}-{seed}.json"


def run_missing(wanted: Sequence[tuple[str, int]], jobs: int, limit: float | None, runs: Path | None) -> None:
    """Run what has no result, `jobs` at a time, each in a process of its own. A run that fails is told and left out."""
    began, running = time.monotonic(), list[tuple[str, subprocess.Popen[bytes]]]()
    waiting = [cell for cell in wanted if not result_file(*cell).is_file()]
    while waiting or running:
        while waiting and len(running) < jobs:
            if limit is not None and time.monotonic() - began > limit:
                print(f"{len(waiting)} runs are left: give the same command again", file=sys.stderr)
                waiting = []
                break
            name, seed = waiting.pop(0)
            kept = () if runs is None else ("--runs", str(runs))
            command = [sys.executable, __file__, *kept, "--cell", name, str(seed)]
            environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": _with_this_folder()}
            running.append((f"{name}-{seed}", subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)))
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
        time.sleep(0.5)
        for label, process in running:
            if process.poll():
                print(f"{label} ended with exit code {process.returncode}", file=sys.stderr)
        running = [each for each in running if each[1].poll() is None]


def _with_this_folder() -> str:
    """For reward functions that a configuration names."""
    return os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))


def run_cell(name: str, seed: int, runs: Path | None) -> None:
    """Train with one fault and one seed, in a folder of `runs` or one that is not kept; its result is written last."""
    import torch

    from ascent import config
    from ascent.environment import preflight, write_environment
    from ascent.host.process import quieten_transformers, set_up_process
    from ascent.tracking import run_directory
    from ascent.training import run as training

    planted = RUNS[name]
    set_up_process()
    quieten_transformers()
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() if runs is None else contextlib.nullcontext(runs / f"{name}-{seed}") as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        more = planted.plant(Path(folder), seed)
        settings, _ = config.load(CONFIG, [*_usual(seed, planted), *planted.settings, *more])
        run = run_directory.create(Path(folder), "run")
        run.config.write_text(settings.to_yaml(), encoding="utf-8")
        write_environment(run.path, preflight(weight_updates=True))
        ended = None
        try:
            training.train(settings, run)
        except InputError as error:  # a fault may end a run; what it had told before counts
            ended = error.message
        lines, alarms = (run_directory.read_json_lines(path) for path in (run.metrics, run.alarms))
    told = ("name", "level", "step", "since", "what")
    result = {
        "steps": len(lines),
        **({} if ended is None else {"ended": ended}),
        "seconds": round(time.monotonic() - began),
        "alarms": [{key: alarm[key] for key in told} for alarm in alarms],
        "pass_rates": [Line.of(line).number("pass_rate") for line in lines[:: max(1, len(lines) // 10)]],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(result_file(name, seed), result)


def _usual(seed: int, planted: Planted) -> Sequence[str]:
    return (
        f"model.path=builtin:starter:{seed}",
        f"tasks.seed={seed}",
        f"trainer.seed={seed}",
        f"trainer.max_steps={planted.steps}",
        "trainer.save_strategy=no",
        "tracking.evaluate=false",
    )


def fold_series(count: int, jobs: int) -> dict[str, Any]:
    """Which alarms above info the fold of made-up healthy series raises: of how many series, and which."""
    with ProcessPoolExecutor(jobs) as pool:
        raised = list(pool.map(_alarms_of_series, range(count), chunksize=5))
    names = Counter(name for found in raised for name in found)
    wrong = [seed for seed, found in enumerate(raised) if found]
    return {"series": count, "steps": SERIES_STEPS, "with_alarm": len(wrong), "alarms": dict(names), "seeds": wrong}


def _alarms_of_series(seed: int) -> list[str]:
    facts, lines, evaluations = healthy_series(seed, SERIES_STEPS)
    alarms, _ = fold(lines, facts, evaluations)
    return sorted({alarm.name for alarm in alarms if alarm.level != "info"})


def to_table(seeds: Sequence[int]) -> str:
    """Markdown: a line a fault, then healthy runs, then made-up series."""
    lines = [
        "| run | seeds | found | after steps (median, most) | found by | other alarms |",
        "|---|---|---|---|---|---|",
    ]
    for name, planted in RUNS.items():
        results = [json.loads(file.read_text()) for seed in seeds if (file := result_file(name, seed)).is_file()]
        if results:
            lines.append(_row(name, planted, results))
    if SERIES.is_file():
        series = json.loads(SERIES.read_text())
        other = ", ".join(f"{name} ({count})" for name, count in sorted(series["alarms"].items())) or "none"
        of = f"{series['with_alarm']} of {series['series']}"
        lines.append(f"| made-up healthy series of {series['steps']} steps | {series['series']} | {of} | | | {other} |")
    return "\n".join(lines)


def _row(name: str, planted: Planted, results: Sequence[Mapping[str, Any]]) -> str:
    finders, others, delays = Counter[str](), Counter[str](), []
    for result in results:
        above = [alarm for alarm in result["alarms"] if alarm["level"] != "info"]
        right = [alarm for alarm in above if alarm["name"] in planted.alarms and alarm["step"] >= planted.begins]
        if right:
            first = min(right, key=lambda alarm: alarm["step"])
            delays.append(first["step"] - planted.begins + 1)
            finders[first["name"]] += 1
        others.update(sorted({alarm["name"] for alarm in above if alarm not in right}))
    steps = f"{sorted(delays)[len(delays) // 2]}, {max(delays)}" if delays else ""
    found = f"{len(delays)} of {len(results)}" if planted.alarms else f"{sum(others.values())} alarms"
    told = (", ".join(f"{each} ({count})" for each, count in counted.most_common()) for counted in (finders, others))
    return f"| {name} | {len(results)} | {found} | {steps} | {' | '.join(told)} |"


def write_between_marks(page: Path, table: str) -> None:
    """Replace what stands between the marks in a page."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    write_text(page, f"{before}{BEGIN}\n{table}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
