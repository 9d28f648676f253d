"""Which groups have nothing to teach: all their completions were scored alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ALARM_AFTER = 10  # generations in a row without any signal


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


class Silence:
    """Counts generations in which no group has signal, and says once an episode what to change."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._generations = tell, 0

    def heard(self, silent_N: Tensor) -> None:
        """Another generation has been scored; `silent_N` are the rows of all ranks that have no signal."""
        self._generations = self._generations + 1 if bool(silent_N.all()) else 0
        if self._generations == ALARM_AFTER:
            self._tell(
                f"ALARM: nothing has been learned in {ALARM_AFTER} generations: all completions of each prompt are "
                "scored alike. Look at rewards and samples (rollouts/): where all are right, the tasks are learned; "
                "where none is, give easier tasks (tasks.train), more completions of each (trainer.num_generations), "
                "or a reward that gives parts of a solution their due. trainer.max_resample_factor above 1 draws "
                "other prompts in their place. The run goes on."
            )
