"""Ascent's optimizer steps have the gradients and losses of TRL's on the same ragged batches, with every saving.

TRL's own trainer is the measure: with a whole optimizer window as one micro-batch, or, for losses that are a mean over
a micro-batch, with the same micro-batches. Both are driven by their own `train`; only sampling is left out.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.training.batches.cases import (
    CASES,
    LEVELS,
    LOSSES,
    MODELS,
    SAMPLED,
    SAVINGS,
    Case,
    can_not_be_had,
    with_loss,
)
from tests.training.batches.trainings import Trainings

from ascent.errors import InputError

pytestmark = pytest.mark.torch
TOLERANCE = 1e-5  # of the gradient, relative
USUAL_SAMPLED = (
    *("sequence_mask", "token_truncate", "unknown-logps", "truncated", "kl", "vespo"),
    *("two-iterations", "window-of-two-generations", "entropy-bonus"),
)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    import peft  # noqa: F401 - these, and what comes with them, before the freeze

    import ascent.training.trainer  # noqa: F401

    gc.freeze()  # every `train` collects garbage, and looking through all the modules takes longer than its steps
    yield Trainings(tmp_path_factory.mktemp("gradients"))
    gc.unfreeze()


def check(trainings: Trainings, case: Case, savings: str) -> None:
    """One case with one saving, against TRL."""
    from tests.training.batches.windows import relative_error

    if can_not_be_had(case, savings):
        with pytest.raises(InputError, match=r"shared_prompt=.* can't be had"):
            trainings.ours(case, SAVINGS[savings])
        return
    theirs = trainings.measure(case, whole=case.whole)
    mine = trainings.ours(case, SAVINGS[savings])
    assert len(mine) == len(theirs)
    for number, (own, other) in enumerate(zip(mine, theirs, strict=True)):
        silent = case.silent and not other.gradient.any()
        assert other.gradient.any() or silent, "the measure itself has a gradient"
        error = relative_error(own.gradient, other.gradient)
        assert error <= TOLERANCE, f"window {number}: gradients differ by {error:.2g} of their length"
        assert own.loss == pytest.approx(other.loss, rel=1e-4, abs=1e-6), f"window {number}"


OF_WEIGHTS = ("sampling/effective_sample_size", "sampling/masked")  # Ascent's own


def check_metrics(trainings: Trainings, case: Case, savings: str) -> list[Any]:
    """What is logged is what TRL logs: of its micro-batches where these stay as they are, otherwise of all rows of an
    optimizer step that were computed, with their share beside it."""
    from tests.training.batches.ragged_batches import with_signal

    asked = SAVINGS[savings]
    mine = trainings.ours(case, asked)
    regrouped = asked["max_tokens_per_batch"] is not None or asked["skip_zero_advantage"]
    if not regrouped or case.sampled or "entropy_coef" in case.settings:
        theirs = trainings.measure(case, whole=False)
    else:
        (window,) = mine
        generations = trainings.generations(case)
        signal = sum(len(with_signal(generation)["advantages"]) for generation in generations)
        skips = asked["skip_zero_advantage"] and not case.settings.get("beta")
        assert window.computed == pytest.approx(signal / (case.ragged.rows * len(generations)) if skips else 1)
        theirs = [trainings.logged(case, computed=skips)]
    for number, (own, other) in enumerate(zip(mine, theirs, strict=True)):
        of_trl = {name: value for name, value in own.metrics.items() if name not in OF_WEIGHTS}
        assert of_trl == pytest.approx(other.metrics, rel=1e-4, abs=1e-6, nan_ok=True), f"window {number}"
    return mine


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(trainings: Trainings, loss: str, level: str) -> None:
    check(trainings, with_loss(CASES["plain"], loss, level), "all")


@pytest.mark.parametrize("name", [name for name in CASES if name != "plain"])
def test_every_option(trainings: Trainings, name: str) -> None:
    check(trainings, CASES[name], "all")


@pytest.mark.parametrize("savings", SAVINGS)
def test_every_saving_alone(trainings: Trainings, savings: str) -> None:
    check(trainings, CASES["plain"], savings)


@pytest.mark.parametrize("name", USUAL_SAMPLED)
def test_from_sampling_to_gradient(trainings: Trainings, name: str) -> None:
    check(trainings, SAMPLED[name], "all")


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_model(trainings: Trainings, model: str) -> None:
    check(trainings, MODELS[model], "all")


@pytest.mark.slow
@pytest.mark.parametrize("savings", SAVINGS)
@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_model_with_each_saving(trainings: Trainings, model: str, savings: str) -> None:
    for option in ("plain", "kl"):
        check(trainings, _on(MODELS[model], CASES[option]), savings)


@pytest.mark.slow
@pytest.mark.parametrize("savings", SAVINGS)
@pytest.mark.parametrize("name", SAMPLED)
def test_from_sampling_to_gradient_with_each_saving(trainings: Trainings, name: str, savings: str) -> None:
    check(trainings, SAMPLED[name], savings)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_with_every_option_and_saving(trainings: Trainings, loss: str, level: str, name: str) -> None:
    case = with_loss(CASES[name], loss, level)
    if refused := trainings.refusal(case):
        with pytest.raises(ValueError, match=re.escape(refused)):
            trainings.ours(case, SAVINGS["all"])
        return
    for savings in SAVINGS:
        check(trainings, case, savings)


def test_savings_take_effect(trainings: Trainings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that the model's layers compute in a step, forward: fewer with each saving, fewest with all."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaMLP

    computed: list[int] = []
    inner = LlamaMLP.forward

    def counting(self: Any, hidden: Any) -> Any:
        if torch.is_grad_enabled():
            computed.append(hidden.shape[:-1].numel())
        return inner(self, hidden)

    monkeypatch.setattr(LlamaMLP, "forward", counting)
    tokens = {}
    for savings in ("none", "budget", "prompts-as-rows", "prompts-cached", "zero-advantage", "equal-rows", "all"):
        computed.clear()
        trainings.ours(CASES["plain"], SAVINGS[savings])
        tokens[savings] = sum(computed)
    for savings, count in tokens.items():
        assert savings == "none" or count < tokens["none"], tokens
        assert count >= tokens["all"], tokens


@pytest.mark.parametrize("loss", ["grpo", "cispo", "vespo"])
def test_metrics(trainings: Trainings, loss: str) -> None:
    check_metrics(trainings, with_loss(CASES["plain"], loss), "all")


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["plain", "kl", "truncated", "window-of-two-generations", "entropy-bonus"])
def test_metrics_with_each_saving(trainings: Trainings, loss: str, level: str, name: str) -> None:
    for savings in SAVINGS:
        check_metrics(trainings, with_loss(CASES[name], loss, level), savings)


@pytest.mark.parametrize("name", ["token_mask", "sequence_truncate", "unknown-logps"])
def test_metrics_of_the_sampler(trainings: Trainings, name: str) -> None:
    """They are of all rows when none is left out, wherever the trainer's log-probabilities come from."""
    mine = check_metrics(trainings, SAMPLED[name], "old-logps")
    assert mine[0].metrics["sampling/sampling_logp_difference/mean"] > 0.1
    before_the_update = trainings.ours(SAMPLED[name], SAVINGS["none"])
    for metric in OF_WEIGHTS:
        assert mine[0].metrics[metric] == pytest.approx(before_the_update[0].metrics[metric], abs=1e-4), metric


def test_what_trl_refuses_is_refused(trainings: Trainings) -> None:
    case = with_loss(CASES["sampler-ratio-of-sequences"], "vespo")
    refused = trainings.refusal(case)
    assert refused is not None
    assert "VESPO loss requires" in refused
    with pytest.raises(ValueError, match=re.escape(refused)):
        trainings.ours(case, SAVINGS["all"])


def _on(model: Case, option: Case) -> Case:
    return replace(option, policy=model.policy, whole=option.whole and model.whole)
