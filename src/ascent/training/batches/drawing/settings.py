"""What a trainer's arguments ask of dynamic sampling and of over-sampling, checked."""

from __future__ import annotations

import math
from typing import Any

from ascent.errors import InputError
from ascent.rollout.engine import AbortingEngine, EnginePlace
from ascent.training.arguments import own_setting
from ascent.training.batches.drawing.refill import RefillSettings
from ascent.training.batches.drawing.stragglers import Closing
from ascent.training.step.parts import outlasting

RESAMPLE, OVERSAMPLE = "max_resample_factor", "oversample_factor"
# what means nothing without one of them, and what is usual
_OF = {
    RESAMPLE: {"max_surplus_age": 0, "curriculum": False},
    OVERSAMPLE: {"max_straggler_age": 4},
}
_MEANS = {RESAMPLE: "dynamic sampling", OVERSAMPLE: "over-sampling"}
_FACTORS = {
    RESAMPLE: (
        "how many times the samples of a generation may be drawn for it",
        "1 draws nothing again; DAPO's runs need 2 to 3.",
    ),
    OVERSAMPLE: (
        "with how many times the groups that it needs a generation begins",
        "1 waits for all groups; more than 2 keeps most of them waiting.",
    ),
}


def drawing_asked_for(args: Any) -> list[str]:
    """The names of those that a GRPOConfig, or TRL's, asks for. Raises InputError for settings that contradict
    themselves."""
    asked = []
    for name, (means, mend) in _FACTORS.items():
        factor = own_setting(args, name)
        if not 1 <= factor < math.inf:
            raise InputError(f"{name}={factor}: should be at least 1: {means}", mend)
        if factor > 1:
            asked.append(name)
            continue
        for field, usual in _OF[name].items():
            if (value := own_setting(args, field)) != usual:
                raise InputError(
                    f"{field}={value!r} has no meaning without {_MEANS[name]}", f"Set {name} above 1, or leave it out."
                )
    return asked


def refill_settings(trainer: Any) -> RefillSettings:
    """The settings of a trainer that asks for one of them, or both. Raises InputError for those that can't be had."""
    args, each = trainer.args, trainer.num_generations
    asked = drawing_asked_for(args)
    rows = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    if rows % each:
        raise InputError(
            f"{asked[0]}={getattr(args, asked[0])}: a process samples {rows} completions of a generation "
            f"(per_device_train_batch_size x steps_per_generation), which are not whole groups of {each}, and a group "
            "that is spread over processes can't be replaced, or carried over, by one of them",
            f"Make it a multiple of num_generations={each}.",
        )
    needed = rows // each
    most = int(args.max_resample_factor * needed) if RESAMPLE in asked else needed
    if RESAMPLE in asked:
        _check_replacing(trainer, needed, most)
    if OVERSAMPLE not in asked:
        return RefillSettings(needed, most, args.max_surplus_age, args.curriculum, args.seed)
    at_once = int(args.oversample_factor * needed)
    _check_closing(trainer, needed, at_once, most if RESAMPLE in asked else None)
    return RefillSettings(
        needed,
        most,
        0,
        args.curriculum,
        args.seed,
        replaces=RESAMPLE in asked,
        at_once=at_once,
        closing=Closing(args.max_straggler_age),
    )


def check_parts_can_be_sampled(trainer: Any) -> None:
    """Raise InputError where completions can't be broken off, or would not go on as they began."""
    if trainer.engine.place is EnginePlace.TRAINERS_MODEL:
        raise InputError(
            f"{OVERSAMPLE}: this engine samples whole batches, so it can't be closed when some of them are complete",
            "Sample with vLLM (use_vllm=True).",
        )
    if not isinstance(trainer.engine, AbortingEngine):
        raise InputError(
            f"{OVERSAMPLE}: {type(trainer.engine).__name__} can't hand out what it has of a completion that is broken "
            "off",
            "Sample with vLLM in the trainer's process (vllm_mode='colocate').",
        )
    if (why := trainer.engine.cannot_abort()) is not None:
        raise InputError(f"{OVERSAMPLE}: {why}", "Use a newer vLLM, or sample in the trainer's process.")
    if trainer._looks_ahead:
        raise InputError(
            f"{OVERSAMPLE}: with staleness 1 a generation has the time of a whole step to be sampled in, beside the "
            "training; closing it early is not built for that",
            "Leave one of them out.",
        )
    if unlike := outlasting(trainer.sampling()):
        raise InputError(
            f"{OVERSAMPLE}: with {', '.join(unlike)} a completion that is broken off would not go on as it began, "
            "since these look back over its own tokens",
            "Leave them out of generation_kwargs and vllm_structured_outputs_regex, or don't over-sample.",
        )


def _check_replacing(trainer: Any, needed: int, most: int) -> None:
    args = trainer.args
    if most == needed:
        raise InputError(
            f"{RESAMPLE}={args.max_resample_factor}: no group could be replaced, for a process samples {needed} of a "
            f"generation, and {args.max_resample_factor} times that is less than one more",
            f"Set it to {(needed + 1) / needed:.2f} or more, or sample more groups at once (steps_per_generation).",
        )
    if args.max_surplus_age < 0:
        raise InputError(f"max_surplus_age={args.max_surplus_age}: should be 0 or more (optimizer steps)")
    if args.max_surplus_age:
        _check_correction(trainer, f"max_surplus_age={args.max_surplus_age}", "leave max_surplus_age at 0")


def _check_closing(trainer: Any, needed: int, at_once: int, most: int | None) -> None:
    """`most` may be drawn, where groups are replaced."""
    args = trainer.args
    if at_once == needed:
        raise InputError(
            f"{OVERSAMPLE}={args.oversample_factor}: no further group would be sampled, for a process needs {needed} "
            f"of a generation, and {args.oversample_factor} times that is less than one more",
            f"Set it to {(needed + 1) / needed:.2f} or more, or sample more groups at once (steps_per_generation).",
        )
    if most is not None and most < at_once:
        raise InputError(
            f"{OVERSAMPLE}={args.oversample_factor} begins with more groups than {RESAMPLE}={args.max_resample_factor} "
            "lets a generation draw",
            f"Raise {RESAMPLE} above it.",
        )
    if args.max_surplus_age:
        raise InputError(
            f"max_surplus_age={args.max_surplus_age} with {OVERSAMPLE}: what is left over is carried over as it is, "
            "whatever its age, and groups are asked for in advance anyway",
            "Leave max_surplus_age at 0.",
        )
    if not isinstance(args.max_straggler_age, int) or args.max_straggler_age < 1:
        raise InputError(f"max_straggler_age={args.max_straggler_age}: should be 1 or more (generations)")
    _check_correction(trainer, f"{OVERSAMPLE}={args.oversample_factor}", f"leave {OVERSAMPLE} at 1")


def _check_correction(trainer: Any, asked: str, otherwise: str) -> None:
    if not (trainer.use_vllm and trainer.vllm_importance_sampling_correction):
        raise InputError(
            f"{asked}: groups of older weights need the correction by the sampler's own log-probabilities, which this "
            "training doesn't have",
            f"Sample with vLLM and vllm_importance_sampling_correction=True, or {otherwise}.",
        )
