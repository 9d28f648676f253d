"""Do guessed tokens (`rollout.speculative`) make sampling faster here?

    python benchmarks/speculation.py [MODEL] [--methods suffix ngram] [--groups 1 8] [--rounds 5]

One engine without guesses and one for each method sample the same prompts of the built-in tasks in turn, groups of
eight completions at temperature 1. MODEL is by default the policy of the quickstart. Prints medians: seconds, tokens,
passes of the model, and the time against that without guesses (above 1: guesses are faster), with its range over the
rounds. The packages numba and arctic-inference must be installed for the methods that are asked for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()
_GROUP = 8
_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Round:
    """One sampling of all groups."""

    seconds: float
    tokens: int
    passes: int


def sample(engine: Any, prompts: Sequence[tuple[int, ...]], stop: int) -> Round:
    """Sample a group of each prompt."""
    from ascent.types import RolloutRequest, Sampling

    sampling = Sampling(_TOKENS, stop_token_ids=(stop,))
    started = time.perf_counter()
    engine.submit([RolloutRequest(str(number), ids, _GROUP, sampling) for number, ids in enumerate(prompts)])
    tokens = passes = 0
    while engine.unfinished():
        tokens += sum(len(completion.token_ids) for completion in engine.poll())
        passes += 1
    return Round(time.perf_counter() - started, tokens, passes)


def report(name: str, rounds: Sequence[Round], plain: Sequence[Round]) -> str:
    """One line."""
    seconds, tokens, passes = (
        statistics.median(getattr(each, figure) for each in rounds) for figure in ("seconds", "tokens", "passes")
    )
    # per token, since what is sampled differs in length
    faster = [
        (other.seconds / other.tokens) / (mine.seconds / mine.tokens) for mine, other in zip(rounds, plain, strict=True)
    ]
    return (
        f"{name:<8} {seconds:.3f} s, {tokens:.0f} tokens in {passes:.0f} passes; {statistics.median(faster):.2f} times "
        f"as fast a token ({min(faster):.2f} to {max(faster):.2f})"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="builtin:starter")
    parser.add_argument("--methods", nargs="+", choices=["suffix", "ngram"], default=["suffix", "ngram"])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--speculative-tokens", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    quieten_transformers()

    from ascent.models.folder import load_tokenizer, model_folder
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine
    from ascent.tasks.builtin import builtin_tasks

    folder = model_folder(args.model)
    tokenizer = load_tokenizer(folder)
    texts = [str(each.task.prompt) for each in builtin_tasks()]
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in texts[:: len(texts) // max(args.groups)]]
    longest = max(map(len, prompts)) + _TOKENS
    # in this order: vLLM starts no other engine once numba, which ngram needs, is loaded
    methods: list[Any] = [None, *sorted(args.methods, reverse=True)]
    engines = {
        method: ColocatedEngine(
            EngineSettings(
                str(folder),
                "float32",
                longest,
                _GROUP * max(args.groups),
                kv_cache_bytes=256 * 2**20,
                speculative=method,
                speculative_tokens=args.speculative_tokens,
            )
        )
        for method in methods
    }
    for groups in args.groups:
        rounds: dict[Any, list[Round]] = {method: [] for method in methods}
        for turn in range(args.rounds + 1):
            for method, engine in engines.items():
                found = sample(engine, prompts[:groups], tokenizer.eos_token_id)
                if turn:  # the first round warms up, and gives `suffix` something to go by
                    rounds[method].append(found)
        print(f"{groups * _GROUP} sequences, {args.speculative_tokens} tokens guessed at most")
        for method in methods:
            print("  " + report(method or "none", rounds[method], rounds[None]))
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
