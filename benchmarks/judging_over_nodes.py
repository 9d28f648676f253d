"""How fast programs are judged over the nodes of a cluster, beside one sandbox in this process, in one run.

    python benchmarks/judging_over_nodes.py [--nodes 1 2 3] [--rounds 4] [--seconds 3] [--json FILE]

The nodes are Ray's, on this machine, each with a judge of one slot; the sandbox in process has as many slots as there
are nodes. Both judge the same programs in turns (A B A B ...): a short one, for which the cores count and what a
message costs, and one that sleeps, as slow programs do, for which the number of slots counts. CPU time is that of this
process with its threads: what a trainer pays for a program besides judging. All programs run at the priority of the
benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ascent.cluster.connection import connected
from ascent.cluster.judging.actors import found_judges, judges_started
from ascent.cluster.places import JudgePlace
from ascent.config.sections import ClusterSection, SandboxSection
from ascent.host.machine_share import usable_cores
from ascent.sandbox import FunctionTest, Program, Sandbox, Verdict
from ascent.sandbox.judges import Judges

SETTINGS = SandboxSection(slots=1)
TESTS = [FunctionTest("double", (n,), 2 * n) for n in range(3)]
PADDING = "# " + "x" * 6000 + "\n"  # the length of a long completion
PROGRAMS = {
    "short": Program(f"{PADDING}def double(n):\n    return 2 * n\n"),
    "sleeps 0.1 s": Program(f"{PADDING}import time\ntime.sleep(0.1)\ndef double(n):\n    return 2 * n\n"),
}
WAITING = 24  # programs a slot: enough for full batches


@contextmanager
def cluster_of(nodes: int) -> Iterator[str]:
    """The address of a head and so many nodes on this machine."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        os.environ |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_num_prestart_python_workers": "0",
        }
        from ray.cluster_utils import Cluster

        store: dict[str, Any] = {"num_gpus": 0, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**store, "num_cpus": 0, "include_dashboard": False})
        try:
            for _ in range(nodes):
                cluster.add_node(**store, num_cpus=1)
            yield str(cluster.address)
        finally:
            cluster.shutdown()


def judged(judges: Judges, program: Program, seconds: float) -> tuple[float, float]:
    """Programs a second, and milliseconds of this process's CPU time for each."""
    waiting: set[Future[Verdict]] = set()
    done, begun, before = 0, time.perf_counter(), time.process_time()
    while (going := time.perf_counter() - begun < seconds) or waiting:
        while going and len(waiting) < WAITING * judges.slots:
            waiting.add(judges.submit(program, TESTS))
        ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        if not all(future.result().all_passed for future in ended):
            raise SystemExit("a right program was judged wrong")
        done += len(ended)
    return done / (time.perf_counter() - begun), 1000 * (time.process_time() - before) / done


def compare(near: Judges, far: Judges, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Of each program the rates and the CPU time of both, in all rounds."""
    results: dict[str, dict[str, list[float]]] = {}
    for name, program in PROGRAMS.items():
        rows: dict[str, list[float]] = {key: [] for key in ("near", "far", "near_cpu_ms", "far_cpu_ms")}
        for judges in (near, far):
            judged(judges, program, 0.3)
        for _ in range(rounds):
            for key, judges in (("near", near), ("far", far)):
                rate, cpu = judged(judges, program, seconds)
                rows[key].append(rate)
                rows[f"{key}_cpu_ms"].append(cpu)
        results[name] = rows
    return results


def measure(counts: Sequence[int], rounds: int, seconds: float) -> dict[int, dict[str, dict[str, list[float]]]]:
    """The comparison for each number of nodes."""
    results = {}
    with ExitStack() as stack:
        address = stack.enter_context(cluster_of(max(counts)))
        nodes = stack.enter_context(connected(ClusterSection(address=address))).nodes()
        judging = [node for node in nodes if node.cpus]
        for count in counts:
            places = [JudgePlace(node, 1) for node in judging[:count]]
            with (
                judges_started(places, SETTINGS, wait_minutes=2, nice=0) as name,
                found_judges(name, nodes, SETTINGS, wait_minutes=2) as far,
                Sandbox(slots=count, nice=0) as near,
            ):
                results[count] = compare(near, far, rounds, seconds)
    return results


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    results = measure(args.nodes, args.rounds, args.seconds)
    print(f"{usable_cores()} cores; medians of {args.rounds} turns, programs a second; CPU: of this process, a program")
    print(f"{'nodes':>5}  {'program':<14}{'in process':>11}{'over nodes':>11}{'ratio':>7}{'CPU':>9}{'CPU':>9}")
    for count, programs in results.items():
        for name, rows in programs.items():
            near, far, near_cpu, far_cpu = (statistics.median(values) for values in rows.values())
            ratio = statistics.median(b / a for a, b in zip(rows["near"], rows["far"], strict=True))
            print(f"{count:>5}  {name:<14}{near:>11.0f}{far:>11.0f}{ratio:>7.2f}{near_cpu:>7.2f}ms{far_cpu:>7.2f}ms")
    if args.json:
        content = {"schema": "ascent.benchmark.judging_over_nodes/1", "cores": usable_cores(), "results": results}
        args.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
