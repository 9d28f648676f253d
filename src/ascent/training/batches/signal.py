"""Which groups have nothing to teach: all their completions were scored alike."""

from __future__ import annotations

import torch
from torch import Tensor


def without_signal(rewards_NF: Tensor, weights_F: Tensor, group_size: int, *, each_function: bool) -> Tensor:
    """(N,) bool: rows whose group has equal scores, of N rows in groups of `group_size` that follow one another.

    `rewards_NF` holds what each of F reward functions gave, NaN for nothing; their weighted sum counts, or with
    `each_function` (TRL's `normalize_then_sum`) each of them apart. TRL's advantages of such rows are off 0 by
    rounding, up to 1e-3, since they are divided by a spread of 0 + 1e-4.
    """
    scores_NF = rewards_NF
    if not each_function:
        sums_N = (rewards_NF * weights_F.to(rewards_NF.device)).nansum(dim=1)
        scores_NF = sums_N.masked_fill(rewards_NF.isnan().all(dim=1), torch.nan)[:, None]
    scores_GSF = scores_NF.reshape(-1, group_size, scores_NF.shape[1])
    known_GSF = ~scores_GSF.isnan()
    highest_GF = scores_GSF.masked_fill(~known_GSF, -torch.inf).amax(dim=1)
    lowest_GF = scores_GSF.masked_fill(~known_GSF, torch.inf).amin(dim=1)
    spread_G = ((highest_GF > lowest_GF) & known_GSF.any(dim=1)).any(dim=1)
    return ~spread_G.repeat_interleave(group_size)
