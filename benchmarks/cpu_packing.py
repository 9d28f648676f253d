"""What does vLLM's packing of weights gain on a CPU, and what does it cost when weights change?

    python benchmarks/cpu_packing.py MODEL [--sequences 16] [--tokens 32] [--rounds 5]

Two engines in one process, one with packed weights and one without, sample in turn; then both take an update of all
weights. Prints the ratio of the medians: above 1 means that packed is faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()


def sample(engine: Any, sequences: int, tokens: int) -> float:
    """Seconds to sample `sequences` completions of `tokens` tokens."""
    from ascent.types import RolloutRequest, Sampling

    sampling = Sampling(tokens, extra=(("ignore_eos", True),))
    started = time.perf_counter()
    engine.submit([RolloutRequest(str(n), tuple(range(100 + n, 120 + n)), 1, sampling, n) for n in range(sequences)])
    while engine.unfinished():
        engine.poll()
    return time.perf_counter() - started


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    quieten_transformers()
    import torch
    from transformers import AutoModelForCausalLM
    from vllm import _custom_ops

    from ascent.models.folder import model_folder
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine

    folder = str(model_folder(args.model))
    settings = EngineSettings(folder, "float32", 20 + args.tokens, args.sequences, kv_cache_bytes=256 * 2**20)
    engines = {"packed": ColocatedEngine(settings)}
    _custom_ops._supports_onednn = False
    engines["plain"] = ColocatedEngine(settings)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sampling: dict[str, list[float]] = {name: [] for name in engines}
    update: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(args.rounds + 1):
        for name, engine in engines.items():
            seconds = sample(engine, args.sequences, args.tokens)
            _custom_ops._supports_onednn = name == "packed"  # read by vLLM when it packs, which an update does anew
            started = time.perf_counter()
            engine.update_weights(model.named_parameters(), turn)
            if turn:  # the first round warms up
                sampling[name].append(seconds)
                update[name].append(time.perf_counter() - started)
    for what, seconds_of in (("sampling", sampling), ("weight update", update)):
        packed, plain = (statistics.median(seconds_of[name]) for name in ("packed", "plain"))
        print(f"{what}: packed {packed:.3f} s, plain {plain:.3f} s; plain / packed = {plain / packed:.2f}")


if __name__ == "__main__":
    main()
