"""The transformers engine: one batch, ended at the first end token, scored on request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.engine import PromptTooLongError
from ascent.types import RolloutRequest, Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def engine(tiny_policy: Callable[..., Path]) -> Any:
    from transformers import AutoModelForCausalLM

    from ascent.rollout.engines.transformers import TransformersEngine

    model = AutoModelForCausalLM.from_pretrained(tiny_policy())
    return TransformersEngine(
        lambda: contextlib.nullcontext(model),
        eos_token_ids=[1],
        pad_token_id=0,
        bos_token_id=None,
        max_model_len=64,
        with_logps=True,
    )


def test_prompts_of_different_length_in_one_batch(engine: Any) -> None:
    import torch

    torch.manual_seed(0)
    engine.submit([RolloutRequest("a", (11, 12, 13), 8, Sampling(20)), RolloutRequest("b", (14,), 8, Sampling(20))])
    assert engine.unfinished() == 16
    completions = engine.poll()
    assert engine.unfinished() == 0
    assert sorted((c.group_id, c.index) for c in completions) == [(g, i) for g in "ab" for i in range(8)]
    for completion in completions:
        assert (completion.token_ids[-1] == 1) == (completion.finish_reason == "stop")
        assert 1 not in completion.token_ids[:-1]
        assert len(completion.logps) == len(completion.token_ids)
    assert engine.stats().tokens_per_second > 0


def test_greedy_and_its_log_probabilities(engine: Any) -> None:
    """Left padding changes nothing: alone and beside a longer prompt, the same tokens and log-probabilities."""
    greedy = Sampling(6, temperature=0.0)
    engine.submit([RolloutRequest("a", (11,), 1, greedy)])
    (alone,) = engine.poll()
    engine.submit([RolloutRequest("a", (11,), 1, greedy), RolloutRequest("b", tuple(range(20, 50)), 1, greedy)])
    beside = next(c for c in engine.poll() if c.group_id == "a")
    assert alone.token_ids.tolist() == beside.token_ids.tolist()
    assert alone.logps == pytest.approx(beside.logps, abs=1e-5)


def test_requests_with_other_settings_are_sampled_apart(engine: Any) -> None:
    engine.submit([RolloutRequest("a", (11,), 1, Sampling(3)), RolloutRequest("b", (11,), 1, Sampling(5))])
    assert [c.group_id for c in engine.poll()] == ["a"]
    assert [c.group_id for c in engine.poll()] == ["b"]
    assert engine.poll() == []


def test_too_long_a_prompt_is_refused(engine: Any) -> None:
    with pytest.raises(PromptTooLongError):
        engine.submit([RolloutRequest("a", (11,) * 60, 1, Sampling(5))])
    assert engine.unfinished() == 0
