"""What a training computes in, decided here alone: weights, autocast, loss scaling, and the engine beside it.

| `npu_optim_level` | weights | products | |
|---|---|---|---|
| not given | as `model.dtype` (default float32) | as `bf16` and `fp16` say; default: bfloat16 | |
| O0 | float32 | float32 | |
| O1 | float32 | autocast: bfloat16 where the device has it, else float16 with torch's scaler | |
| O2 | a copy in half precision, made of float32 masters | bfloat16, or float16 | FSDP2's mixed precision |

Log-softmax, advantages, ratios and loss are float32 in each: TRL's head gives float32 log-probabilities, and nothing
after it is under autocast.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from ascent import devices
from ascent.errors import InputError

Level = Literal["O0", "O1", "O2"]


def set_precision(args: Any) -> None:
    """Settle `bf16` and `fp16` of a GRPOConfig by its `npu_optim_level`, before TRL fills in what is left open.

    Raises InputError for a level that isn't one, that contradicts them, or that this training can't have.
    """
    level = args.npu_optim_level
    if level is not None:
        if level not in get_args(Level):
            raise InputError(f"npu_optim_level={level!r}: should be O0, O1 or O2")
        _set_by_level(args, level)
    if args.fp16 and args.bf16:
        raise InputError("fp16=true contradicts bf16=true", "Give one of them.")
    if args.fp16 and (args.use_cpu or devices.kind() == "cpu"):
        raise InputError("fp16=true: float16 with loss scaling needs an NPU or a GPU", "Set bf16=true, or neither.")


def _set_by_level(args: Any, level: Level) -> None:
    if level == "O0":
        if args.bf16 or args.fp16:
            raise InputError(
                f"npu_optim_level=O0, which is float32, contradicts {'bf16' if args.bf16 else 'fp16'}=true",
                "Leave one of them out.",
            )
        args.bf16 = False
        return
    if args.bf16 is False and not args.fp16:
        raise InputError(f"npu_optim_level={level}, which is mixed precision, contradicts bf16=false")
    if level == "O2" and not args.fsdp:
        raise InputError(
            "npu_optim_level=O2: weights in half precision with float32 masters are FSDP2's mixed precision, and there "
            "is no fsdp here. Without masters small updates are lost in rounding",
            "Set trainer.fsdp (docs/training.md), or npu_optim_level: O1.",
        )
    if not args.fp16 and args.bf16 is None:
        args.fp16 = not _has_bf16(args)
        args.bf16 = not args.fp16


def _has_bf16(args: Any) -> bool:
    return bool(args.use_cpu or devices.kind() == "cpu" or devices.supports_bf16())  # on CPU it is emulated


def engine_dtype(weights: str, *, fp16: bool, device_kind: str) -> str:
    """What an engine computes in that nobody gave a dtype: as the trainer does. `weights` is the trained weights'
    dtype; `device_kind` what the engine runs on."""
    if device_kind == "cpu" or weights != "float32":
        return weights
    return "float16" if fp16 else "bfloat16"


def refuse_half_weights(model: Any) -> None:
    """Raise InputError where float16 weights are to be trained."""
    name = next((name for name, each in model.named_parameters() if each.requires_grad and _is_half(each)), None)
    if name is not None:
        raise InputError(
            f"the trained weights are float16 ({name}): their gradients underflow, and torch's scaler can't unscale "
            "gradients of float16",
            "Set model.dtype=float32 with trainer.fp16=true: products are then float16, weights and optimizer float32; "
            "or train adapters (model.lora).",
        )


def _is_half(parameter: Any) -> bool:
    return str(parameter.dtype) == "torch.float16"


def tell_saturation(tell: Any) -> None:
    """Say that overflows can't be seen, on a device that saturates."""
    if devices.saturates():
        tell(
            f"note: {devices.name()} gives the largest number instead of infinity where a product overflows. So an "
            "overflow shows in no gradient, and neither the guard against bad steps nor fp16's scaler sees it: watch "
            "loss and reward, and prefer float32 (npu_optim_level: O0)"
        )
