"""vLLM and the training model in bfloat16, with the output head in float32 on both sides, on one, and on neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_sides_differ_least_when_both_have_it(tiny_policy: Callable[..., Path]) -> None:
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine
    from ascent.training.sampling_check import sample
    from ascent.types import Sampling

    folder = tiny_policy(tied=False, dtype="bfloat16")
    prompts = [(5, 6, 7, 8), (9, 10, 11), (20, 21, 22, 23, 24)]
    found: dict[tuple[bool, bool], float] = {}
    for engine_has_it in (False, True):
        head = "float32" if engine_has_it else None
        settings = EngineSettings(str(folder), "bfloat16", 64, kv_cache_bytes=16 * 2**20, head_dtype=head)
        engine = ColocatedEngine(settings)
        try:
            completions = sample(engine, prompts, 64, Sampling(32), 0)
        finally:
            engine.close()
        for trainer_has_it in (False, True):
            found[engine_has_it, trainer_has_it] = mean_difference(folder, completions, trainer_has_it)
    both, neither = found.pop((True, True)), found.pop((False, False))
    assert both < neither
    assert all(both < one_sided for one_sided in found.values())
    assert max(neither, *found.values()) < 0.005


def mean_difference(folder: Path, completions: list[Any], head_in_float32: bool) -> float:
    """Mean |sampler - trainer| of the sampled tokens' log-probabilities, by TRL's fused head."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    add_fused_lm_head(model, temperature=1.0, cast_lm_head_to_fp32=head_in_float32)
    differences = []
    for completion in completions:
        ids_1T = torch.tensor([[*completion.prompt_ids, *completion.token_ids.tolist()]])
        labels_1T = ids_1T.clone()
        labels_1T[:, : len(completion.prompt_ids)] = -100
        with torch.no_grad():
            logps_1T = model(input_ids=ids_1T, labels=labels_1T, fused_lm_head=True).log_probs
        assert logps_1T.dtype == torch.float32, "whatever the weights are"
        differences.append((logps_1T[0, -len(completion.token_ids) :] - torch.tensor(completion.logps)).abs())
    return float(torch.cat(differences).mean())
