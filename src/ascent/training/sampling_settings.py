"""How a trainer's arguments sample: TRL's fields and its `generation_kwargs`, which override them, as a `Sampling`."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from ascent.types import Sampling

# transformers' name of what Sampling names otherwise
_MAX_NEW_TOKENS = "max_new_tokens"
# of transformers: they would make something else of a greedy completion, or say again how to sample
_NOT_GREEDY = ("do_sample", "num_beams", "temperature", "top_p", "top_k", "min_p")


def sampling_settings(trainer: Any, *, greedy: bool = False) -> Sampling:
    """The sampling settings of a `trl.GRPOTrainer` on Ascent's path.

    What `generation_kwargs` names otherwise than a field is taken for it, and whatever is left of them goes to the
    engine as it is. With `greedy` the most likely token is taken at each place.
    """
    extra = _for_vllm(trainer) if trainer.use_vllm else _for_transformers(trainer)
    own = {field.name for field in dataclasses.fields(Sampling)} - {"extra"}
    longest = extra.pop("max_tokens")
    # None is the engine's to understand: transformers takes its own default for it
    given = {name: extra.pop(name) for name in list(extra) if name in own and extra[name] is not None}
    settings = Sampling(longest, **given, extra=tuple(extra.items()))
    if not greedy:
        return settings
    rest = tuple((name, value) for name, value in settings.extra if name not in _NOT_GREEDY)
    return dataclasses.replace(settings, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, extra=rest)


def _for_transformers(trainer: Any) -> dict[str, Any]:
    """What TRL itself would give to `GenerationConfig`; the engine knows the trainer's special tokens."""
    settings = dict(trainer.generation_kwargs)
    settings["max_tokens"] = settings.pop(_MAX_NEW_TOKENS)
    known = {
        "pad_token_id": trainer._tokenizer.pad_token_id,
        "bos_token_id": trainer._tokenizer.bos_token_id,
        "eos_token_id": trainer.eos_token_ids,
        "do_sample": True,
    }
    unset = {"min_p", "cache_implementation"} - set(trainer.args.generation_kwargs or {})  # None in TRL's fields
    return {
        name: value
        for name, value in settings.items()
        if (name not in known or known[name] != value) and not (name in unset and value is None)
    }


def _for_vllm(trainer: Any) -> dict[str, Any]:
    """What TRL would give to `SamplingParams`. Beside the tokens of `generation_kwargs`, those that end a completion in
    the trainer's view end it."""
    args = trainer.args
    settings: dict[str, Any] = {
        "max_tokens": trainer.max_completion_length,
        "temperature": trainer.temperature,
        "top_p": trainer.top_p,
        "top_k": trainer.top_k,
        "min_p": trainer.min_p or 0.0,
        "repetition_penalty": trainer.repetition_penalty,
        **(args.generation_kwargs or {}),
    }
    ends = [] if settings.get("ignore_eos") else trainer.eos_token_ids
    settings["stop_token_ids"] = tuple(dict.fromkeys([*ends, *(settings.get("stop_token_ids") or ())]))
    if args.vllm_structured_outputs_regex is not None:
        if settings.get("structured_outputs") is not None:
            warnings.warn(
                "vllm_structured_outputs_regex takes the place of generation_kwargs['structured_outputs']", stacklevel=2
            )
        settings["structured_outputs"] = {"regex": args.vllm_structured_outputs_regex}
    return settings


def completion_seed(trainer: Any) -> int | None:
    """What the seeds of a trainer's completions are made of; None where they have none."""
    return trainer.args.seed if trainer.use_vllm and getattr(trainer.args, "seeded_sampling", False) else None
