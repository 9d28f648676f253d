"""The report at scale: how long the index takes, a page, a text search, and how much memory, over completions made up.

    python benchmarks/report.py                    # 200,000 completions in small files and packed, a million packed
    python benchmarks/report.py --completions 20000 --layouts small packed

Each layout is read by a process of its own. Run directories are made under --folder and kept, so that a second run
measures at once. Completions have about 190 tokens and 700 characters.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' generator of runs

from tests.report.synthetic_run import Shape, make_packed

A_GENERATION = 128
TEXTS = ("step by step", "xs[::-1] never written", "line 7")


def main() -> int:
    """Make the runs, measure them, print a table; exit code 1 where a bound is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, nargs="+", default=[200_000, 200_000, 1_000_000])
    parser.add_argument("--layouts", choices=("small", "packed"), nargs="+", default=["small", "packed", "packed"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ascent-report-benchmark")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures too")
    args = parser.parse_args()
    found = []
    for count, layout in zip(args.completions, args.layouts, strict=True):
        run = _made(args.folder, count, layout)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append(
                {"completions": count, "layout": layout, "megabytes": _megabytes(run), **pool.apply(_measure, (run,))}
            )
        print(_row(found[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(each["missed"] for each in found))


def _made(folder: Path, count: int, layout: str) -> Path:
    run = folder / f"{layout}-{count}"
    if not (run / "metrics.jsonl").exists():  # written last
        print(f"making {run}", file=sys.stderr)
        shape = Shape(
            steps=-(-count // A_GENERATION), prompts=A_GENERATION // 8, tasks=400, length=220, stale_from=None
        )
        make_packed(run, shape, small=layout == "small")
    return run


def _measure(run: Path) -> dict[str, Any]:
    """In a process of its own: seconds of the index, of pages and of searches; peak memory in megabytes."""
    from starlette.testclient import TestClient

    from ascent.report.page.app import build_app
    from ascent.report.page.rollout_filter import Filter
    from ascent.report.page.run_library import library

    runs = library(run)
    opened = runs.open(run.name)
    index, rollouts = opened.rollouts.index, opened.rollouts
    before = os.times()
    indexing = _seconds(index.refresh)
    cpu = sum(os.times()[:2]) - sum(before[:2])
    pages = {}
    with TestClient(
        build_app(runs, "token"), base_url="http://127.0.0.1", cookies={"ascent_report": "token"}
    ) as client:

        def get(path: str) -> Callable[[], Any]:
            return lambda: client.get(f"/runs/{run.name}/{path}").raise_for_status()

        one = rollouts.listing(Filter(), first=len(index.rows("SELECT 1 FROM completions")) // 2, most=1).rows[0]
        for name, path in {
            "list": "rollouts",
            "sorted by reward": "rollouts?sort=best",
            "filtered": "rollouts?outcome=hollow&sort=longest",
            "overview": "",
            "tasks": "tasks",
            "one completion": f"completion?id={one['sample_id']}",
            "its group": f"group?id={one['group_id']}",
        }.items():
            pages[name] = _seconds(get(path))
    searches = {text: _seconds(partial(rollouts.listing, Filter(q=text))) for text in TEXTS}
    complete = all(hits.complete for hits in rollouts._searches.values())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    small = "small" in run.name
    missed = [
        name
        for name, bad in {
            "index of 200,000 under 10 s": index.progress.total and "200000" in run.name and indexing >= 10,
            "first page within 3 s": not small and pages["list"] > 3,
            "search within 3 s": not small and (max(searches.values()) > 3 or not complete),
            "memory under 1 GB": memory >= 1000,
        }.items()
        if bad
    ]
    return {
        "files": len(index.files),
        "index": indexing,
        "index_cpu": cpu,
        "pages": pages,
        "searches": searches,
        "searched_all": complete,
        "memory": memory,
        "missed": missed,
    }


def _seconds(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _megabytes(run: Path) -> float:
    return sum(path.stat().st_size for path in (run / "rollouts").iterdir()) / 1e6


def _row(found: dict[str, Any]) -> str:
    pages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found["pages"].items())
    searches = ", ".join(f"{seconds:.2f}" for seconds in found["searches"].values())
    return (
        f"{found['completions']:,} completions, {found['layout']}: {found['files']} files, "
        f"{found['megabytes']:.0f} MB\n"
        f"  index {found['index']:.1f} s (CPU {found['index_cpu']:.1f} s), memory {found['memory']:.0f} MB\n"
        f"  pages, s: {pages}\n"
        f"  searches, s: {searches}{'' if found['searched_all'] else ' (not all was searched in the time)'}\n"
        f"  {'missed: ' + ', '.join(found['missed']) if found['missed'] else 'within all bounds'}"
    )


if __name__ == "__main__":
    sys.exit(main())
