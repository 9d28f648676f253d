"""The log-probabilities of sampled completions, sampler against trainer; and settings that make them differ rightly."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.far_engine import FarEngine
from tests.training.test_served import train

from ascent.rollout.engine import WeightMismatchError
from ascent.rollout.narrowed_sampling import narrowing
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.rollout.weights.verify.expected_differences import TABLE, expected_difference
from ascent.types import Completion, Sampling

pytestmark = pytest.mark.torch


def judge_of(sampler: str = "float32", trainer: str = "float32") -> tuple[Any, list[str]]:
    from ascent.training.step.agreement import Agreement
    from ascent.training.step.ranks import Ranks
    from ascent.training.step.sampler_difference import SamplerDifference

    told: list[str] = []
    expected = expected_difference(sampler, trainer)
    return SamplerDifference(expected, f"{sampler}, {trainer}", Agreement(Ranks(0, 1)), told.append), told


def one_token(version: int) -> Completion:
    return Completion("g", 0, (1,), as_token_ids((2,)), as_logps(()), "stop", version, 0.0, 0.0)


def seen(difference: float, versions: tuple[int, ...] = (4, 4), **changes: Any) -> tuple[Any, int]:
    """What a generation of step 5 shows, of completions of three and two tokens."""
    from ascent.training.step.sampler_difference import difference_of

    output, batch = generation(difference, versions)
    return difference_of(output | changes, batch), batch.step


def generation(difference: float, versions: tuple[int, ...]) -> tuple[dict[str, Any], Any]:
    """TRL's output and the record of it."""
    import torch

    from ascent.training.records.batch import BatchRecord

    sampler = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -2.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    output = {"completion_mask": mask, "sampling_per_token_logps": sampler, "old_per_token_logps": sampler + difference}
    batch = BatchRecord([], "4", generation=4, step=5, rank=0)
    batch.completions = [one_token(version) for version in versions]
    return output, batch


def test_a_difference_is_usual_then_suspicious_then_the_end() -> None:
    check, told = judge_of()
    for usual in (0.0, 1e-6, 9e-3):
        check.check(*seen(usual))
    assert told == []
    check.check(*seen(0.03))
    check.check(*seen(0.04))
    assert len(told) == 1, "once"
    assert "differ by 0.03 on average (5 tokens of step 5; float32, float32)" in told[0]
    with pytest.raises(WeightMismatchError, match="samples from another policy than the one that is trained") as ended:
        check.check(*seen(-0.06))
    assert check._agreement.ended_with is ended.value, "known to all ranks, so that the last step is kept"
    with pytest.raises(WeightMismatchError):
        check.check(*seen(math.inf))


def test_what_differs_rightly_does_not_count() -> None:
    import torch

    check, told = judge_of()
    check.check(*seen(9.0, versions=(3, 3)))  # sampled with older weights
    padding = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    sampler = generation(0.0, (4, 4))[0]["sampling_per_token_logps"]
    check.check(*seen(0.0, old_per_token_logps=sampler + padding))
    check.check(*seen(math.nan))  # vLLM could not score them
    check.check(*seen(9.0, old_per_token_logps=None))  # no correction: TRL doesn't take them
    assert told == []
    with pytest.raises(WeightMismatchError, match="3 tokens"):
        check.check(*seen(9.0, versions=(4, 3)))


def test_the_coarser_precision_decides() -> None:
    dtypes = ("float32", "float16", "bfloat16")
    assert set(TABLE) == {(sampler, trainer) for sampler in dtypes for trainer in dtypes}
    for place, sampler in enumerate(dtypes):
        for other, trainer in enumerate(dtypes):
            coarser = dtypes[max(place, other)]
            assert expected_difference(sampler, trainer) == expected_difference(coarser, coarser)
    for row in TABLE.values():
        assert row.usual < row.suspicious < row.wrong
    assert expected_difference("fp8", "bfloat16") == expected_difference("bfloat16", "bfloat16")


class OtherPolicy(FarEngine):
    """Samples uniformly from 195 tokens, and says so: a policy that isn't trained."""

    def poll(self) -> list[Completion]:
        from dataclasses import replace

        return [replace(each, logps=as_logps((-8.0,) * len(each.token_ids))) for each in super().poll()]


def test_a_run_whose_engine_samples_from_another_policy_ends_before_its_step(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(WeightMismatchError, match="of step 1; sampler float32, trainer float32"):
        train(tiny_policy(), tmp_path, OtherPolicy())


def test_settings_that_bias_the_ratio_are_refused_with_the_correction(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    from ascent.errors import InputError

    with pytest.raises(InputError, match=r"top_p=0\.8, min_p=0\.1 and vllm_importance_sampling_correction") as refused:
        train(tiny_policy(), tmp_path / "1", FarEngine(), top_p=0.8, min_p=0.1, max_steps=2)
    assert "vllm_importance_sampling_correction=false" in refused.value.mend
    assert "newer model runner" in refused.value.mend
    memory, _ = train(
        tiny_policy(), tmp_path / "2", FarEngine(), top_p=0.8, vllm_importance_sampling_correction=False, max_steps=1
    )
    assert "sampling/effective_sample_size" not in memory.steps[0].metrics


def test_which_settings_narrow_the_distribution() -> None:
    assert narrowing(Sampling(8, temperature=0.7, extra=(("ignore_eos", True), ("logit_bias", None)))) == ()
    every = Sampling(
        8, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1, extra=(("presence_penalty", 0.5), ("min_tokens", 4))
    )
    assert [each.partition("=")[0] for each in narrowing(every)] == [
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "min_tokens",
    ]


def test_a_model_thatdrops_out_is_not_judged(tiny_policy: Callable[..., Path]) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from ascent.training.dropout import drops_out

    def policy(**settings: Any) -> Any:
        return AutoModelForCausalLM.from_pretrained(tiny_policy(), **settings)

    assert not drops_out(policy())
    assert drops_out(policy(attention_dropout=0.1))
    assert drops_out(get_peft_model(policy(), LoraConfig(target_modules=["q_proj"], lora_dropout=0.05)))
    assert not drops_out(get_peft_model(policy(), LoraConfig(target_modules=["q_proj"])))
    assert not drops_out(torch.nn.Dropout(0.0))
