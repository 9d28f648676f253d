"""How fast the sandbox judges, beside a fresh interpreter per program and beside bubblewrap per program, in one run.

    python benchmarks/sandbox.py [--seconds 8] [--workers N] [--nice N] [--json]

Every contestant judges the same small program against the same three tests, N at a time (default: one for each core),
in turns of a second, so that a change of the load falls on all alike. Fresh interpreters and bubblewrap run program and
tests in one process, which any program can fake: they are here for their speed only. All run at the same priority.
CPU time is that of a program with all that judges it (bubblewrap's own isn't seen whole).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ascent.host.machine_share import usable_cores
from ascent.sandbox import AssertTest, FunctionTest, Level, Program, Sandbox, StdioTest, Test
from ascent.sandbox.attack import processes_below

SOURCE = "def double(n):\n    return 2 * n\n"
SCRIPT = "print(2 * int(input()))\n"
CALLS: list[Test] = [FunctionTest("double", (n,), 2 * n) for n in range(3)]
SIMPLE: list[Test] = [AssertTest(f"assert double({n}) == {2 * n}") for n in range(3)]
TESTER: list[Test] = [AssertTest(f"x = double({n})\nassert x == {2 * n}") for n in range(3)]
STDIO: list[Test] = [StdioTest(f"{n}\n", f"{2 * n}\n") for n in range(3)]
WHOLE = SOURCE + "".join(f"assert double({n}) == {2 * n}\n" for n in range(3))
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]

Contestant = Callable[[float], list[float]]  # seconds to work -> seconds of each program


def per_process(command: list[str], workers: int) -> Contestant:
    """A process for every program."""

    def one(_: int) -> float:
        started = time.perf_counter()
        subprocess.run([*command, sys.executable, "-I", "-c", WHOLE], check=True)
        return time.perf_counter() - started

    def work(seconds: float) -> list[float]:
        end = time.perf_counter() + seconds
        taken: list[float] = []
        with ThreadPoolExecutor(workers) as pool:
            while time.perf_counter() < end:
                taken += pool.map(one, range(2 * workers))
        return taken

    return work


def in_sandbox(sandbox: Sandbox, source: str, tests: list[Test]) -> Contestant:
    """A warm sandbox."""

    def work(seconds: float) -> list[float]:
        end = time.perf_counter() + seconds
        taken: list[float] = []
        waiting: list[Future] = []
        while time.perf_counter() < end or waiting:
            while len(waiting) < 2 * sandbox.slots and time.perf_counter() < end:
                waiting.append(sandbox.submit(Program(source), tests))
            verdict = waiting.pop(0).result()
            if not verdict.all_passed:
                raise SystemExit(f"a right program was judged wrong: {verdict}")
            taken.append(verdict.seconds)
        return taken

    return work


def cpu_seconds() -> float:
    """CPU time so far of this process, of its children that are gone, and of those that live, with theirs."""
    total = sum(os.times()[:4])
    for pid in processes_below(os.getpid()):
        with open(f"/proc/{pid}/stat") as file:
            ticks = file.read().rsplit(")", 1)[1].split()[11:15]
        total += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return total


def measure(contestants: dict[str, Contestant], seconds: float) -> dict[str, dict[str, float]]:
    """Programs a second, CPU time of each, median and 99th percentile in milliseconds, over turns of a second each."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    spent = dict.fromkeys(contestants, 0.0)
    used = dict.fromkeys(contestants, 0.0)
    for work in contestants.values():
        work(0.2)
    while min(spent.values()) < seconds:
        for name, work in contestants.items():
            started, before = time.perf_counter(), cpu_seconds()
            taken[name] += work(1.0)
            spent[name] += time.perf_counter() - started
            used[name] += cpu_seconds() - before
    return {
        name: {
            "per_second": len(times) / spent[name],
            "cpu_ms": 1000 * used[name] / len(times),
            "median_ms": 1000 * statistics.median(times),
            "p99_ms": 1000 * statistics.quantiles(times, n=100)[98],
        }
        for name, times in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of work for each contestant")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="programs at once")
    parser.add_argument("--nice", type=int, default=19, help="of all contestants; lower it where other work runs too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.nice(args.nice)
    contestants: dict[str, Contestant] = {"python -I per program": per_process([], args.workers)}
    if shutil.which("bwrap"):
        contestants["bubblewrap per program"] = per_process(BWRAP, args.workers)
    else:
        print("bubblewrap isn't installed (apt-get install bubblewrap): left out", file=sys.stderr)
    sandboxes = []
    levels: tuple[Level, ...] = ("confined", "namespaced")
    for level in levels:
        sandbox = Sandbox(slots=args.workers, at_most=level, nice=args.nice)
        sandboxes.append(sandbox)
        if sandbox.level != level:
            print(f"level {level} isn't available here: left out", file=sys.stderr)
            continue
        contestants[f"{level}: function tests"] = in_sandbox(sandbox, SOURCE, CALLS)
        contestants[f"{level}: simple asserts"] = in_sandbox(sandbox, SOURCE, SIMPLE)
        contestants[f"{level}: asserts by a tester"] = in_sandbox(sandbox, SOURCE, TESTER)
        contestants[f"{level}: stdio, 3 processes"] = in_sandbox(sandbox, SCRIPT, STDIO)
    results = measure(contestants, args.seconds)
    for sandbox in sandboxes:
        sandbox.close()
    if args.json:
        print(json.dumps({"schema": "ascent.benchmark.sandbox/1", "workers": args.workers, "results": results}))
        return
    plain = results["python -I per program"]["per_second"]
    wrapped = results.get("bubblewrap per program", {}).get("per_second")
    print(f"{'':<32}{'per s':>8}{'x python':>10}{'x bwrap':>9}{'CPU':>10}{'median':>10}{'p99':>10}{'p99/median':>12}")
    for name, row in results.items():
        rate = row["per_second"]
        times = f"{rate / wrapped:.1f}" if wrapped else "-"
        median, tail = row["median_ms"], row["p99_ms"]
        print(
            f"{name:<32}{rate:>8.0f}{rate / plain:>10.1f}{times:>9}{row['cpu_ms']:>7.1f} ms{median:>7.1f} ms"
            f"{tail:>7.1f} ms{tail / median:>12.1f}"
        )


if __name__ == "__main__":
    main()
