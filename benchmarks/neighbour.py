"""What does a busy neighbour, such as a sandbox slot, cost sampling and updating on CPU, and with how many threads?

    python benchmarks/neighbour.py [MODEL] [--rounds 5] [--threads 1 2]

For each number of torch's threads, alone and beside a process that computes at nice 19: milliseconds of one token of 64
sequences (vLLM), and of forward and backward over 64 sequences of 64 tokens. Medians, with the range over the rounds.
MODEL is by default the policy of the quickstart. `OMP_WAIT_POLICY` is passive, as in every training, unless it is set.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()
_SEQUENCES, _TOKENS = 64, 64
_BUSY = "import os\nos.nice(19)\nwhile True: pass"


@contextlib.contextmanager
def neighbour(*, busy: bool) -> Iterator[None]:
    """A process that computes while inside, if `busy`."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY]) if busy else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def sampling(engine: Any) -> Callable[[], float]:
    """What samples, and gives milliseconds a token of all sequences."""
    from ascent.types import RolloutRequest, Sampling

    sampling = Sampling(_TOKENS, extra=(("ignore_eos", True),))

    def measure() -> float:
        started = time.perf_counter()
        engine.submit([RolloutRequest("g", tuple(range(40, 60)), _SEQUENCES, sampling)])
        while engine.unfinished():
            engine.poll()
        return (time.perf_counter() - started) / _TOKENS * 1e3

    return measure


def updating(folder: str) -> Callable[[], float]:
    """What computes a gradient, and gives milliseconds."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids_BT = torch.randint(3, model.config.vocab_size, (_SEQUENCES, _TOKENS))

    def measure() -> float:
        started = time.perf_counter()
        model(ids_BT, labels=ids_BT).loss.backward()
        return (time.perf_counter() - started) * 1e3

    return measure


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="builtin:starter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    quieten_transformers()

    import torch

    from ascent.models.folder import model_folder
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine

    folder = str(model_folder(args.model))
    engine = ColocatedEngine(EngineSettings(folder, "float32", 128, _SEQUENCES, kv_cache_bytes=256 * 2**20))
    phases = {"a token sampled": sampling(engine), "forward and backward": updating(folder)}
    settings = [(threads, busy) for threads in args.threads for busy in (False, True)]
    found: dict[tuple[str, int, bool], list[float]] = {}
    for turn in range(args.rounds + 1):
        for threads, busy in settings:
            torch.set_num_threads(threads)
            with neighbour(busy=busy):
                for phase, measure in phases.items():
                    milliseconds = measure()
                    if turn:  # the first round warms up
                        found.setdefault((phase, threads, busy), []).append(milliseconds)
    print(f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY')}, {len(os.sched_getaffinity(0))} cores")
    for (phase, threads, busy), each in sorted(found.items()):
        where = "beside a busy process" if busy else "alone"
        seen = f"{statistics.median(each):.1f} ms ({min(each):.1f} to {max(each):.1f})"
        print(f"{phase}, {threads} threads, {where}: {seen}")
    engine.close()


if __name__ == "__main__":
    main()
