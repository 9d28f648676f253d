"""The output head in float32: in trainer and engine, or in neither. On one side alone it can widen their difference.

The trainer's is TRL's `cast_lm_head_to_fp32`, which the engine follows with vLLM's `head_dtype`.
"""

from __future__ import annotations

from typing import Any

from ascent.errors import InputError
from ascent.rollout.platform import installed_vllm

_FIRST = (0, 31)  # vLLM with a float32 head of generating models, as far as it was read


def head_dtype(args: Any) -> str | None:
    """What vLLM computes its head in for a training with these arguments; None: as the rest of the model.

    Raises InputError where the installed vLLM can't do it.
    """
    if not args.cast_lm_head_to_fp32:
        return None
    version = installed_vllm()
    if tuple(int(part) for part in version.split(".")[:2]) < _FIRST:
        raise InputError(
            f"model.head_dtype=float32 (trainer.cast_lm_head_to_fp32): vLLM {version} has no float32 head, and on the "
            "trainer's side alone it can widen the difference of the two",
            "Leave it out, or sample with vLLM 0.31 or later, or with rollout.engine=transformers.",
        )
    return "float32"
