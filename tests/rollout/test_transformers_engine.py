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


def test_scores_given_tokens(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token's log-probability is that of `token_logps`, its rival the most likely other token. Also where all
    sequences at once would have too many logits."""
    import torch

    from ascent.models.token_logps import token_logps
    from ascent.rollout.engines import scoring

    sequences = [[5, 9, 30, 31, 7], [8, 8], list(range(20, 50))]
    together = engine.score(sequences)
    with engine._model() as model:
        for sequence, found in zip(sequences, together, strict=True):
            ids = torch.tensor([sequence])
            expected = token_logps(model, ids, torch.ones_like(ids), len(sequence) - 1)[0]
            assert found.logps == pytest.approx(expected.numpy(), abs=1e-5)
            with torch.no_grad():
                logps_TV = model(ids).logits[0, :-1].float().log_softmax(-1)
            for place, token in enumerate(sequence[1:]):
                ranked = [int(each) for each in logps_TV[place].argsort(descending=True) if int(each) != token]
                assert found.rivals[place] == ranked[0]
                assert found.rival_logps[place] == pytest.approx(float(logps_TV[place, ranked[0]]), abs=1e-5)
    monkeypatch.setattr(scoring, "_LOGITS", 1)
    for one, other in zip(engine.score(sequences), together, strict=True):
        assert one.logps == pytest.approx(other.logps, abs=1e-5)


def test_what_vllm_leaves_out_is_no_number() -> None:
    import math

    from ascent.rollout.engines.scoring import scores

    found = scores([4, 5, 6], [None, {5: -1.0, 9: -2.0, 8: -0.5}])
    assert found.logps[0] == -1.0
    assert (found.rivals[0], found.rival_logps[0]) == (8, -0.5)
    assert math.isnan(found.logps[1])
    assert found.rivals[1] == -1
