"""How near does `ascent tune` come to the fastest of all settings, and in what part of the time?

    python benchmarks/tune.py short                  # or ragged, long; goes on where it was
    python benchmarks/tune.py short ragged long --time-limit 900
    python benchmarks/tune.py --table

For each workload a grid of settings is measured whole: an engine of its own for each, started with just these settings,
one generation that doesn't count and three that do. Then the search of `ascent tune` runs over the same points, with a
quarter of the grid's seconds as its budget. Last the grid's best and the search's best are measured again, A B A B, in
engines of their own. Nothing counts while others use the machine; a point during which they did is measured again.

Lines of benchmarks/results/tune-WORKLOAD.jsonl are what was measured, so that a run that ended early goes on;
benchmarks/results/tune-WORKLOAD.json has the answer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from stepping import machine
from stepping.workloads import WORKLOADS, make_policy, make_prompts

from ascent.bench.training.ratio import ratio
from ascent.rollout.engine import EngineSettings
from ascent.tracking.run_directory import append_json_line, read_json_lines, write_json
from ascent.tuning.engines import ChildEngines
from ascent.tuning.known import WHOLE
from ascent.tuning.ledger import Ledger
from ascent.tuning.probe import Group
from ascent.tuning.search import Search
from ascent.tuning.space import Point, Space
from ascent.tuning.trial import EngineChild
from ascent.tuning.workload import Workload
from ascent.types import Sampling

_RESULTS = Path(__file__).resolve().parent / "results"
_PROBES, _ROUNDS = 3, 5
_TRIES = 5  # of a measurement that others disturb


@dataclass(frozen=True, slots=True)
class Case:
    """A policy and prompts of benchmarks/stepping, and the lengths of completions: `shortest` to `longest` tokens, most
    of them short (a power of `skew`). `grid` are values of a point's fields; `part`: the search's share of its time."""

    policy: str
    groups: int
    group: int
    shortest: int
    longest: int
    skew: float
    grid: dict[str, tuple[Any, ...]]
    part: float = 0.25


CASES = {
    "short": Case(
        "quick",
        16,
        8,
        8,
        32,
        1.0,
        {"max_num_seqs": (8, 32, 128), "enforce_eager": (True, False), "block_size": (32, None), "threads": (1, None)},
    ),
    "ragged": Case(
        "ragged",
        8,
        8,
        16,
        384,
        3.0,
        {"max_num_seqs": (8, 16, 32, 64), "enforce_eager": (True, False), "block_size": (32, 64, None)},
    ),
    "long": Case(
        "long",
        8,
        8,
        8,
        32,
        1.0,
        {
            "max_num_batched_tokens": (1024, 2048, 8192),
            "prefix_caching": (True, False),
            "block_size": (32, None),
            "threads": (1, None),
        },
    ),
    "tiny": Case(
        "tiny", 2, 4, 4, 8, 1.0, {"max_num_seqs": (2, 8), "block_size": (32, None)}, part=3.0
    ),  # to try the program
}


def main() -> int:
    """Measure what is asked for, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(CASES))
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="begin no measurement after that long")
    parser.add_argument("--busy-ok", action="store_true", help="measure anyhow; such results are not to be kept")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="measure nothing; show what is there")
    args = parser.parse_args()
    if unknown := set(args.workloads) - set(CASES):
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    until = time.monotonic() + (args.time_limit or math.inf)
    try:
        for name in [] if args.table else args.workloads:
            Bench(name, args.results, until, busy_ok=args.busy_ok).run()
    except EndedEarlyError as early:
        print(f"{early}; the same command goes on", file=sys.stderr)
        return 1
    print(table(args.results))
    return 0


class EndedEarlyError(Exception):
    """Out of time, or others use the machine. What was measured is kept."""


class Bench:
    """One workload: what was measured of it, and what is missing."""

    def __init__(self, name: str, results: Path, until: float, *, busy_ok: bool) -> None:
        results.mkdir(parents=True, exist_ok=True)
        self._name, self._case, self._until, self._busy_ok = name, CASES[name], until, busy_ok
        self._lines, self._answer = results / f"tune-{name}.jsonl", results / f"tune-{name}.json"
        self._folder = Path(tempfile.gettempdir()) / f"ascent-tune-{name}"
        self._folder.mkdir(exist_ok=True)
        self._workload, self._settings = self._make()
        with EngineChild(self._folder / "engines.log") as child:
            self._machine = child.look()
        self._points = grid(self._case, self._base())

    def run(self) -> None:
        """All that is missing, then the answer."""
        for point in self._points:
            if not self._of("grid", point):
                self._keep("grid", point, self._whole(point, _PROBES))
        rows = self._of("grid")
        seconds = sum(row["cost"] for row in rows)
        best = max(rows, key=_speed)
        found, spent, probes = self._search(self._case.part * seconds)
        pair = (Point(**best["point"]), found)
        for number in range(_ROUNDS):
            for who, point in zip("AB", pair, strict=True):
                if len(self._of(f"again-{who}")) <= number:
                    self._keep(f"again-{who}", point, self._whole(point, 1))
        self._write(rows, seconds, pair, spent, probes)

    def _base(self) -> Point:
        """As a run would have it."""
        sequences = self._case.groups * self._case.group
        return Point(sequences, max(4096, self._settings.max_model_len), kv_cache_mb=512)

    def _make(self) -> tuple[Workload, EngineSettings]:
        case, stepping = self._case, WORKLOADS[self._case.policy]
        folder = make_policy(stepping, self._folder / "policy")
        from ascent.models.folder import load_tokenizer

        tokenizer = load_tokenizer(folder)
        prompts = [tuple(tokenizer(text)["input_ids"]) for text in make_prompts(stepping, tokenizer, case.groups)]
        count = case.groups * case.group
        spread = case.longest - case.shortest
        # evenly over the quantiles, dealt out so that every group has short and long ones
        lengths = [case.shortest + round(spread * ((place + 0.5) / count) ** case.skew) for place in range(count)]
        groups = tuple(Group(prompt, tuple(lengths[place :: case.groups])) for place, prompt in enumerate(prompts))
        workload = Workload(groups, f"benchmarks/tune.py {self._name}")
        settings = EngineSettings(str(folder), "float32", workload.longest, kv_cache_bytes=2**29)
        return workload, settings

    def _engines(self) -> ChildEngines:
        log = self._folder / "engines.log"
        return ChildEngines(self._settings, self._machine, self._workload, Sampling(None), False, log, 600.0)

    def _whole(self, point: Point, probes: int) -> dict[str, Any]:
        """An engine of just these settings, and its probes. Done again where others used the machine."""
        for _ in range(_TRIES):
            if time.monotonic() > self._until:
                raise EndedEarlyError(f"{self._name}: out of time")
            if not self._busy_ok and (who := machine.busy(0.3)):
                print(f"{self._name}: waiting: {who}", file=sys.stderr)
                time.sleep(20)
                continue
            before = machine.usage()
            with self._engines() as engines:
                begun = time.monotonic()
                engines.open(point)
                engines.probe(point, WHOLE, None)
                found = [engines.probe(point, WHOLE, None) for _ in range(probes)]
                cost = time.monotonic() - begun
            others = machine.usage().others_since(before)
            if others <= machine.TOLERATED or self._busy_ok:
                speeds = [each.tokens_per_second for each in found]
                return {"cost": cost, "tokens_per_second": speeds, "others": others}
            print(f"{self._name}: measured again, others used {others:.2f} cores", file=sys.stderr)
        raise EndedEarlyError(f"{self._name}: others use the machine")

    def _search(self, budget: float) -> tuple[Point, float, int]:
        """The search over the same points: its best, its seconds, and its probes. It goes on where it was."""
        space = Space(self._base(), self._case.grid, tuple(self._points))
        of = {"grid": [point.to_json() for point in self._points], "budget": round(budget)}
        ledger = Ledger(self._lines.with_name(f"tune-{self._name}-search.jsonl"), of)
        if time.monotonic() + max(0.0, budget - ledger.spent) > self._until:
            raise EndedEarlyError(f"{self._name}: too little time for a search of {budget:.0f} s")
        if not self._busy_ok and (who := machine.busy()):
            raise EndedEarlyError(f"{self._name}: {who}")
        with self._engines() as engines:
            search = Search(
                space,
                engines,
                ledger,
                budget,
                watch=lambda step: print(f"  {step.spent:5.0f} s  {step.what}", file=sys.stderr),
            )
            search.run()
        best = search.known.best()
        assert best is not None  # else the search has said so
        return best, ledger.spent, len(ledger.tried)

    def _of(self, kind: str, point: Point | None = None) -> list[dict[str, Any]]:
        lines = read_json_lines(self._lines)
        return [line for line in lines if line["kind"] == kind and (point is None or line["point"] == point.to_json())]

    def _keep(self, kind: str, point: Point, found: dict[str, Any]) -> None:
        append_json_line(self._lines, {"kind": kind, "point": point.to_json(), **found})
        speed = statistics.geometric_mean(found["tokens_per_second"])
        print(f"{self._name} {kind}: {speed:,.0f} tokens/s  {point.told(self._base())}", file=sys.stderr, flush=True)

    def _write(
        self, rows: Sequence[dict[str, Any]], seconds: float, pair: tuple[Point, Point], spent: float, probes: int
    ) -> None:
        again = [[line["tokens_per_second"][0] for line in self._of(f"again-{who}")] for who in "AB"]
        between = ratio([found / best for best, found in zip(*again, strict=True)])
        speeds = [_speed(row) for row in rows]
        write_json(
            self._answer,
            {
                "schema": "ascent.benchmarks.tune/1",
                "workload": self._workload.told(),
                "machine": machine.describe(),
                "kept": not self._busy_ok,
                "points": len(rows),
                "grid_seconds": round(seconds, 1),
                "worst": round(min(speeds), 1),
                "best": round(max(speeds), 1),
                "best_over_worst": round(max(speeds) / min(speeds), 3),
                "search_seconds": round(spent, 1),
                "search_part": round(spent / seconds, 3),
                "search_probes": probes,
                "grid_best": pair[0].told(self._base()),
                "search_best": pair[1].told(self._base()),
                "again_grid": [round(each, 1) for each in again[0]],
                "again_search": [round(each, 1) for each in again[1]],
                "search_over_grid": {"mean": between.mean, "low": between.low, "high": between.high},
            },
        )


def grid(case: Case, base: Point) -> list[Point]:
    """Every combination of the case's values."""
    points = []
    for chosen in itertools.product(*case.grid.values()):
        changes: Any = dict(zip(case.grid, chosen, strict=True))
        points.append(replace(base, **changes))
    return points


def table(results: Path) -> str:
    """What there is, in Markdown."""
    lines = [
        "| workload | points | best / worst | grid | search | probes | search's best / grid's best | search's best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in CASES:
        path = results / f"tune-{name}.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            again = found["search_over_grid"]
            lines.append(
                f"| {name}{'' if found['kept'] else ' (busy machine: not to be kept)'} | {found['points']} | "
                f"{found['best_over_worst']:.2f} | {found['grid_seconds']:.0f} s | {found['search_seconds']:.0f} s "
                f"({found['search_part']:.0%}) | {found['search_probes']} | {again['mean']:.3f} ({again['low']:.3f} to "
                f"{again['high']:.3f}) | {found['search_best']} |"
            )
    return "\n".join(lines)


def _speed(row: dict[str, Any]) -> float:
    return statistics.geometric_mean(row["tokens_per_second"])


if __name__ == "__main__":
    sys.exit(main())
