"""In a process of its own: vLLM beside the training model. `python -m ascent.selftest.engine_child FOLDER WHAT`.

WHAT is `weights` (log-probabilities before and after new weights) or `sleep` (asleep, then awake). The figures are
written to FOLDER/WHAT.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROMPTS = ("def add(a, b):", "# the sum of a list\ndef total(xs):", "def first(xs):", "def is_even(n):")
_TOKENS = 24
_CONTEXT = 128  # of the engine, and the tokens that it computes in one step


def main(folder: Path, what: str) -> None:
    """Measure, and write what was measured."""
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process()
    quieten_transformers()
    found = {"weights": weights, "sleep": sleep}[what](folder / "policy")
    (folder / f"{what}.json").write_text(json.dumps(found), encoding="utf-8")


def weights(policy: Path) -> dict[str, Any]:
    """Differences of log-probabilities between engine and model: as loaded, after new weights, and (so that the second
    means something) between the new completions and the old weights. And whether seeds hold."""
    import torch

    from ascent.models.folder import load_tokenizer
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine
    from ascent.rollout.platform import engine_kind
    from ascent.training.sampling_check import load_policy, logp_differences, sample
    from ascent.types import Sampling

    platform = engine_kind()
    dtype = "float32" if platform == "cpu" else "bfloat16"
    tokenizer = load_tokenizer(policy)
    prompts = [tuple(tokenizer(prompt)["input_ids"]) for prompt in _PROMPTS]
    sampling = Sampling(_TOKENS, stop_token_ids=(tokenizer.eos_token_id,))
    settings = EngineSettings(str(policy), dtype, _CONTEXT, max_num_batched_tokens=1, kv_cache_bytes=64 * 2**20)
    engine = ColocatedEngine(settings)
    try:
        model = load_policy(policy, dtype)
        completions = sample(engine, prompts, 4, sampling, 0)
        loaded = logp_differences(model, completions, 1.0)
        scored = _scored(engine, model, [(*each.prompt_ids, *each.token_ids.tolist()) for each in completions])
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(noise * parameter.float().std().nan_to_num(0.1) * 0.5)
        engine.update_weights(model.named_parameters(), version=1)
        completions = sample(engine, prompts, 4, sampling, 1)
        updated = logp_differences(model, completions, 1.0)
        stale = logp_differences(load_policy(policy, dtype), completions, 1.0)
        speed = engine.stats().tokens_per_second
        same_seed = _same_seed(engine)
    finally:
        engine.close()
    return {
        "platform": platform,
        "dtype": dtype,
        "loaded_mean": loaded[0],
        "loaded_max": loaded[1],
        "scored_mean": scored[0],
        "scored_max": scored[1],
        "updated_mean": updated[0],
        "updated_max": updated[1],
        "stale_mean": stale[0],
        "tokens_per_second": speed,
        "same_seed": same_seed,
    }


def _scored(engine: Any, model: Any, sequences: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Mean and largest |engine - model| log-probability of given tokens, prompts included."""
    import numpy as np

    from ascent.rollout.engines.scoring import score_with_model

    pairs = zip(engine.score(sequences), score_with_model(model, sequences, 0), strict=True)
    differences = np.concatenate([np.abs(mine.logps - theirs.logps) for mine, theirs in pairs])
    return float(differences.mean()), float(differences.max())


def _same_seed(engine: Any) -> float:
    """The share of prompts whose first tokens are the same whether they are computed with others, when most of them
    take two engine steps, or alone. (At a high temperature, so that other draws would give other tokens.)"""
    from ascent.training.sampling_check import sample
    from ascent.types import Sampling

    prompts = [tuple((7 * number + 3 * place) % 250 + 2 for place in range(_CONTEXT * 3 // 4)) for number in range(12)]
    sampling = Sampling(4, temperature=2.0)
    together = sample(engine, prompts, 1, sampling, 0)
    alone = [sample(engine, [prompt], 1, sampling, 1000 * number)[0] for number, prompt in enumerate(prompts)]
    equal = [mine.token_ids.tolist() == theirs.token_ids.tolist() for mine, theirs in zip(together, alone, strict=True)]
    return sum(equal) / len(equal)


def sleep(policy: Path) -> dict[str, Any]:
    """Greedy tokens before sleep, after waking up to sample, and after waking up for new weights (the same ones), and
    the memory in between; only the platform's name where it has no sleep mode."""
    from ascent.rollout.platform import engine_kind

    platform = engine_kind()
    from vllm.platforms import current_platform

    if not current_platform.is_sleep_mode_available():
        return {"platform": platform}
    from ascent import devices
    from ascent.models.folder import load_tokenizer
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine
    from ascent.training.sampling_check import load_policy, sample
    from ascent.types import Sampling

    tokenizer = load_tokenizer(policy)
    prompts = [tuple(tokenizer(prompt)["input_ids"]) for prompt in _PROMPTS]
    engine = ColocatedEngine(EngineSettings(str(policy), "bfloat16", _CONTEXT, engine_share=0.2, sleeps=True))

    def tokens(first: int) -> list[list[int]]:
        found = sample(engine, prompts, 1, Sampling(_TOKENS, temperature=0.0), first)
        return [completion.token_ids.tolist() for completion in found]

    try:
        before, awake = tokens(0), devices.use().used_bytes
        engine.rest()
        asleep = devices.use().used_bytes
        woken = tokens(1)
        engine.rest()
        engine.update_weights(load_policy(policy, "bfloat16").named_parameters(), version=1)
        updated = tokens(2)
    finally:
        engine.close()
    same = woken == before and updated == before
    return {"platform": platform, "same": same, "freed_gib": (awake - asleep) / 2**30}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
