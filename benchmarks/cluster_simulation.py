"""How near is `ascent cluster simulate`, where that can be measured: ranks of this machine, joined by Gloo?

    python benchmarks/cluster_simulation.py [--ranks 2 3 4] [--repeats 30] [--output FILE]

Measures all-reduces of several sizes with each number of ranks, one thread each. From two sizes with the fewest ranks
it takes a delay and a bandwidth (the two unknowns of a ring), and predicts everything else: the other sizes, the other
numbers of ranks, and a step of DistributedDataParallel (its computing measured without communication). Prints
predicted and measured times with the error. `--output` keeps all of it for `ascent cluster simulate --measured FILE`.

Ranks that are more than the cores take as many times longer: a message here is work of a core.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from ascent.cluster.simulation import formulas
from ascent.cluster.simulation.constants import Check, Constants, defaults, spread, write_measured
from ascent.host.machine_share import usable_cores
from ascent.memory.cards import card

SIZES = tuple(4096 * 4**power for power in range(8))  # bytes: 4 KiB to 64 MiB
FITTED = (4096, 2**24)  # a delay shows in the one, a bandwidth in the other
WIDTH, LAYERS, ROWS = 512, 16, 256  # of the model that takes the step: 4.2 million float32 weights


def measure(rank: int, ranks: int, folder: str, repeats: int) -> None:
    """One of the ranks. The first writes what it measured, in seconds: size -> all-reduce, and both kinds of steps."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{ranks}", rank=rank, world_size=ranks)
    greatest = dist.ReduceOp.MAX  # as much work as a sum, and numbers stay numbers
    tensors = {size: torch.ones(size // 4) for size in SIZES}
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    whole, rows = DistributedDataParallel(model), torch.randn(ROWS, WIDTH)

    def computed() -> None:
        with whole.no_sync():
            whole(rows).square().mean().backward()
        dist.barrier()  # a step takes as long as its slowest rank

    def stepped() -> None:
        whole(rows).square().mean().backward()

    todo: dict[str, Callable[[], object]] = {"computed": computed, "stepped": stepped}
    todo |= {str(size): partial(dist.all_reduce, tensor, greatest) for size, tensor in tensors.items()}
    times: dict[str, list[float]] = {name: [] for name in todo}
    for _ in range(repeats + 3):
        for name, act in todo.items():  # in turn, so that what else runs here falls on all of them
            dist.barrier()
            began = time.perf_counter()
            act()
            times[name].append(time.perf_counter() - began)
    if rank == 0:
        fastest = {name: min(found[3:]) for name, found in times.items()}  # what else runs here only adds to a time
        Path(folder, f"{ranks}.json").write_text(json.dumps(fastest), encoding="utf-8")
    dist.barrier()  # nobody leaves while another still talks to it
    dist.destroy_process_group()


def fitted(found: dict[str, float], ranks: int) -> dict[str, float]:
    """Delay and bandwidth of a ring that takes as long as was measured for the two sizes of FITTED."""
    (small, large), steps = FITTED, 2 * (ranks - 1)
    per_byte = (found[str(large)] - found[str(small)]) / (large - small)
    delay = (found[str(small)] - small * per_byte) / steps
    if per_byte <= 0 or delay <= 0:
        raise SystemExit("larger messages weren't slower than small ones: the machine is too busy; run it again")
    return {"inside_us": delay * 1e6, "inside_gb_s": steps / ranks / per_byte / 1e9}


def checks(measured: dict[int, dict[str, float]], constants: Constants, fewest: int) -> list[Check]:
    """Everything that wasn't fitted: predicted and measured."""
    made = []
    crowded = {ranks: max(1.0, ranks / usable_cores()) for ranks in measured}
    for ranks, found in measured.items():
        for size in SIZES:
            if ranks == fewest and size in FITTED:
                continue
            predicted = crowded[ranks] * formulas.all_reduce(size, ranks, ranks, constants)
            made.append(Check(f"all-reduce of {size // 1024} KiB, {ranks} ranks", predicted, found[str(size)]))
    payload = 4.0 * LAYERS * (WIDTH + 1) * WIDTH
    for ranks, found in measured.items():
        predicted = found["computed"] + crowded[ranks] * formulas.gradients(payload, ranks, ranks, constants)
        made.append(Check(f"step of whole copies, {ranks} ranks", predicted, found["stepped"]))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if min(args.ranks) < 2:
        parser.error("--ranks: expected at least 2 of each")
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in sorted(set(args.ranks)):
            spawn(measure, (ranks, folder, args.repeats), nprocs=ranks)
            measured[ranks] = json.loads(Path(folder, f"{ranks}.json").read_text(encoding="utf-8"))
    fewest = min(measured)
    values = fitted(measured[fewest], fewest)
    # forward and backward passes without checkpointing: 6 operations a weight and row, on one core
    values["tflops"] = 6 * LAYERS * WIDTH * WIDTH * ROWS / measured[fewest]["computed"] / 1e12
    values["compute_share"] = 1.0
    constants = defaults(card("cpu:16GB")).changed(values, "measured")
    made = checks(measured, constants, fewest)
    delay, bandwidth = values["inside_us"], values["inside_gb_s"]
    print(f"{delay:.0f} us and {bandwidth:.2f} GB/s, from {fewest} ranks on {usable_cores()} cores")
    for check in made:
        print(f"{check.what:<34} {check.predicted * 1e3:9.2f} ms  {check.measured * 1e3:9.2f} ms  {check.error:+.0%}")
    print(spread(made))
    if args.output:
        about = {"kind": "cpu", "cores": usable_cores(), "ranks": sorted(measured), "backend": "gloo"}
        write_measured(args.output, values, made, about)


if __name__ == "__main__":
    main()
