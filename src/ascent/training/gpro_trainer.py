"""GPROTrainer: GRPOTrainer with a penalty on the norm of the gradient, and the field's published call."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

from trl.trainer.grpo_config import GRPOConfig as TRLConfig

from ascent.errors import InputError
from ascent.training.arguments import default_arguments
from ascent.training.gpro_arguments import GPROConfig
from ascent.training.step.sampler import print_on_stderr
from ascent.training.trainer import GRPOTrainer


class GPROTrainer(GRPOTrainer):
    """Ascent's `GRPOTrainer`, with `args` of `GPROConfig`. The algorithm: `ascent.algorithms.gpro`."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: TRLConfig | None = None,
        *positional: Any,
        tokenizer: Any = None,
        npu_optim_level: str | None = None,
        gradient_penalty_weight: float | None = None,
        **keywords: Any,
    ) -> None:
        """Arguments are GRPOTrainer's. `tokenizer` is another name of `processing_class`; `npu_optim_level` and
        `gradient_penalty_weight` set the fields of `args` of these names.

        Raises InputError as GRPOTrainer does, without a reward, and where two arguments contradict each other.
        """
        if reward_funcs is None:
            raise InputError(
                "GPROTrainer was given no reward (reward_funcs)",
                "Give a reward function, such as ascent.CodeReward(tasks), or a model that scores.",
            )
        if tokenizer is not None:
            if keywords.get("processing_class") is not None:
                raise InputError("tokenizer and processing_class are the same argument", "Give processing_class only.")
            keywords["processing_class"] = tokenizer
        args = _gpro_arguments(args, model, npu_optim_level)
        if gradient_penalty_weight is not None:
            _contradicts("gradient_penalty_weight", gradient_penalty_weight, args.gradient_penalty_weight)
            args.gradient_penalty_weight = gradient_penalty_weight
        if tokenizer is not None and args.process_index == 0:
            print_on_stderr("note: tokenizer is taken for processing_class, its name in TRL")
        super().__init__(model, reward_funcs, args, *positional, **keywords)


def _gpro_arguments(args: TRLConfig | None, model: Any, level: str | None) -> GPROConfig:
    """A copy of `args`, or defaults; those of GRPO get the penalty's defaults. With a `level` they are settled anew,
    for precision is decided when arguments are made."""
    given = default_arguments(model) if args is None else args
    if level is not None:
        _contradicts("npu_optim_level", level, getattr(given, "npu_optim_level", None))
        settings = {field.name: getattr(given, field.name) for field in fields(given) if field.init}
        settings |= {"npu_optim_level": level, "generation_batch_size": None}  # which TRL makes of the others
        if level == "O0":
            settings |= {"bf16": False, "fp16": False}
        return GPROConfig(**settings)
    made = copy.copy(given)
    if not isinstance(made, GPROConfig):
        made.__class__ = GPROConfig  # made again, TRL's arguments would refuse what they have filled in themselves
        for field in fields(GPROConfig):
            if not hasattr(made, field.name):
                setattr(made, field.name, field.default)
    assert isinstance(made, GPROConfig)
    return made


def _contradicts(name: str, value: Any, given: Any) -> None:
    if given is not None and given != value:
        raise InputError(f"{name}={value!r} contradicts {name}={given!r} of args", "Keep one of them.")
