"""What a trainer asks of its engine before it trains, and the sampler that it samples with."""

from __future__ import annotations

import copy
import functools
from typing import Any

from datasets import Dataset

from ascent.errors import InputError
from ascent.rewards.base import drop_rewards, start_rewards
from ascent.rollout.engine import EnginePlace, EngineSettings, RolloutEngine
from ascent.rollout.narrowed_sampling import narrowing
from ascent.rollout.weights.adapters import refuse_unmergeable, refuse_unservable
from ascent.rollout.weights.parameters import PolicyWeights, computing_dtype
from ascent.rollout.weights.verify.canary_sequences import canary_sequences
from ascent.rollout.weights.verify.expected_differences import expected_difference
from ascent.tables import ENGINES, load
from ascent.training.dropout import drops_out
from ascent.training.step.sampler import Sampler, print_on_stderr
from ascent.training.step.sampler_difference import SamplerDifference

_LOOKED_AT = 8  # prompts of the dataset, for the canary


# an engine, or how one is built: vLLM's settings, or a name of `ascent.tables.ENGINES`
Chosen = RolloutEngine | EngineSettings | str


def check_staleness(staleness: int, engine: Chosen) -> None:
    """Raise InputError for a staleness that the engine, or any, can't have."""
    if staleness not in (0, 1):
        raise InputError(
            f"staleness={staleness}: should be 0 (sampled in turns with training) or 1 (one generation ahead)"
        )
    if staleness == 0:
        return
    place = _place(engine)
    if place is not EnginePlace.ELSEWHERE:
        raise InputError(
            f"staleness=1: the next generation is sampled while this one trains, but this engine samples {place.value}",
            "Sample with servers: rollout.mode=server, or engine=ascent.connect(SERVICE).",
        )


def _place(engine: Chosen) -> EnginePlace:
    if isinstance(engine, EngineSettings):
        return EnginePlace.TRAINERS_PROCESS
    place: EnginePlace = (load(ENGINES, engine) if isinstance(engine, str) else engine).place
    return place


def check_adapters(model: Any, engine: Chosen) -> None:
    """Raise InputError for adapters of `model` that the engine would sample otherwise than they are trained."""
    if getattr(engine, "adapter", None) is not None:
        refuse_unservable(model)
    elif _place(engine) is not EnginePlace.TRAINERS_MODEL:
        refuse_unmergeable(model)


def sampler_for(trainer: Any, engine: RolloutEngine, *, verify: bool) -> Sampler:
    """The sampler of a trainer; with `verify` a canary goes with the weights to an engine that has its own."""
    decoder = copy.deepcopy(trainer._tokenizer)  # a tokenizer serves one thread at a time
    own_weights = engine.place is not EnginePlace.TRAINERS_MODEL
    sequences: tuple[tuple[int, ...], ...] = ()
    if verify and own_weights:
        config = trainer.model.config.get_text_config()
        sequences = canary_sequences(_first_prompts(trainer), trainer._tokenizer, config)
    weights = PolicyWeights(
        trainer.model,
        trainer.accelerator,
        trainer.processing_class,
        steps_done=lambda: trainer.state.global_step,
        digested=own_weights,
        adapter=getattr(engine, "adapter", None) is not None,
        canary_sequences=sequences,
    )
    return Sampler(
        engine,
        weights,
        trainer.agreement,
        trainer._clock,
        decode=functools.partial(decoder.decode, skip_special_tokens=True),
        receive=lambda place, row, text: start_rewards(trainer.reward_funcs, row, text),
        drop=lambda row, text: drop_rewards(trainer.reward_funcs, row, text),
        progress=trainer._recorder.sampled if trainer._recorder is not None else lambda done, total: None,
    )


def _first_prompts(trainer: Any) -> list[list[int]]:
    """Some prompts of the dataset; none of a stream, which is left as it is."""
    rows = trainer.train_dataset
    first = [rows[place] for place in range(min(_LOOKED_AT, len(rows)))] if isinstance(rows, Dataset) else []
    found: list[list[int]] = trainer._prompt_ids(first) if first else []
    return found


def difference_check(trainer: Any, engine: RolloutEngine, *, verify: bool) -> SamplerDifference | None:
    """What checks the sampled completions' log-probabilities; None where they differ rightly, or aren't known."""
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    if not verify or not corrected or drops_out(trainer.model):
        return None
    computing = computing_dtype(trainer.model, trainer.accelerator)
    return SamplerDifference(
        expected_difference(engine.dtype, computing),
        f"sampler {engine.dtype}, trainer {computing}",
        trainer.agreement,
        print_on_stderr if trainer.accelerator.is_main_process else lambda text: None,
    )


def biased_by(trainer: Any) -> tuple[str, ...]:
    """The sampling settings that bias the importance ratios of this training."""
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    return narrowing(trainer.sampling()) if corrected else ()


def refuse_biased_ratio(trainer: Any) -> None:
    """Raise InputError for sampling settings that bias the importance ratios of this training."""
    found = biased_by(trainer)
    if found:
        raise InputError(
            f"{', '.join(found)} and vllm_importance_sampling_correction: vLLM gives log-probabilities of the "
            "distribution that is left, the trainer those of the whole policy. Their ratio, which the correction takes "
            "for the mismatch of the two, comes out too small by the probability that was cut away (0.8 to 0.9 with "
            "top_p=0.8), and the loss with it",
            "Sample from the whole policy; or give up the correction with "
            "trainer.vllm_importance_sampling_correction=false, which leaves the mismatch of sampler and trainer, and "
            "staleness, uncorrected and unchecked. What would mend it are the token ids that the sampler kept, which "
            "vLLM returns only with its newer model runner, and not on CPU.",
        )
