"""How much of a batch the importance weights leave: their effective sample size, and what they mask.

The effective sample size of n weights w is (sum w)^2 / sum w^2 (Kish, Survey Sampling, 1965); here as a share of n. 1:
all weigh alike, as where sampler and trainer agree; 1/n: one weighs all. Weights are what TRL's loss is multiplied
with, after its bounds: a sequence's or a token's, by `vllm_importance_sampling_mode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

EFFECTIVE, MASKED = "sampling/effective_sample_size", "sampling/masked"
COLUMNS = 4


def weight_sums(ratio: Tensor, counted: Tensor) -> Tensor:
    """(4,) float32: sum and sum of squares of the counted weights, their number, and how many are 0. `ratio` is (B, C)
    or (B, 1), `counted` a bool of its shape. Stays on the device."""
    weights = ratio.float().masked_fill(~counted, 0.0)
    gone = (ratio == 0) & counted
    return torch.stack([weights.sum(), weights.square().sum(), counted.sum().float(), gone.sum().float()])


def figures(sums: Sequence[float]) -> dict[str, float]:
    """The metrics of `weight_sums` over all ranks; {} where there was no weight."""
    total, squares, number, gone = sums
    if not number:
        return {}
    return {EFFECTIVE: total**2 / (number * squares) if squares else 0.0, MASKED: gone / number}


def weights_of(output: Mapping[str, Any], accelerator: Any) -> dict[str, float]:
    """The metrics of a generation, `output` of TRL's; {} where it has no ratio. Collective."""
    ratio = output.get("importance_sampling_ratio")
    if ratio is None:
        return {}
    tool_mask_BC = output.get("tool_mask")
    mask_BC = output["completion_mask"] if tool_mask_BC is None else output["completion_mask"] * tool_mask_BC
    counted = mask_BC.bool() if ratio.shape == mask_BC.shape else mask_BC.bool().any(dim=1, keepdim=True)
    found: list[float] = accelerator.reduce(weight_sums(ratio, counted), reduction="sum").tolist()
    return figures(found)
