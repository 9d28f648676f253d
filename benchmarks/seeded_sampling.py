"""What do seeds of their own for every completion (`seeded_sampling`) cost vLLM's sampler?

    python benchmarks/seeded_sampling.py MODEL [--sequences 1 8 32] [--tokens 32] [--rounds 5] [--dtype float32]

One engine samples the same prompts with seeds and without in turn. Prints the medians of the seconds and their ratio:
above 1 means that seeds cost that much.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()


def sample(engine: Any, sequences: int, tokens: int, *, seeded: bool) -> float:
    """Seconds to sample `sequences` completions of `tokens` tokens."""
    from ascent.types import RolloutRequest, Sampling

    sampling = Sampling(tokens, extra=(("ignore_eos", True),))
    started = time.perf_counter()
    engine.submit(
        [
            RolloutRequest(str(n), tuple(range(100 + n, 120 + n)), 1, sampling, n if seeded else None)
            for n in range(sequences)
        ]
    )
    while engine.unfinished():
        engine.poll()
    return time.perf_counter() - started


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    quieten_transformers()

    from ascent.models.folder import model_folder
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine

    folder = str(model_folder(args.model))
    engine = ColocatedEngine(
        EngineSettings(folder, args.dtype, 20 + args.tokens, max(args.sequences), kv_cache_bytes=512 * 2**20)
    )
    for sequences in args.sequences:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(args.rounds + 1):
            for seeded in (True, False):
                taken = sample(engine, sequences, args.tokens, seeded=seeded)
                if turn:  # the first round warms up
                    seconds[seeded].append(taken)
        with_seeds, without = statistics.median(seconds[True]), statistics.median(seconds[False])
        print(
            f"{sequences} sequences: {with_seeds:.3f} s with seeds, {without:.3f} s without, "
            f"ratio {with_seeds / without:.3f}"
        )
    engine.close()


if __name__ == "__main__":
    main()
