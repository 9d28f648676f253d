"""What is not finite where it arises, before it can hide in a gradient.

- rewards: TRL turns one infinite reward into a group without advantages, or into advantages of -3e38, and takes NaN
  for "not scored" in silence. Here what a reward function gives beyond the finite numbers of float32 counts as not
  scored.
- the sampler's log-probabilities: vLLM gives NaN near probability 1, for which TRL takes the ratio 1; an infinite one
  is taken likewise.
- completions of token 0 only: what a sampler gives whose logits are all NaN.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import is_async_callable

from ascent.types import Completion

ALARM_SHARE = 0.01  # of a generation's completions
REWARDS, LOGPS, TOKEN_0 = "numerics/rewards_not_finite", "numerics/logps_not_finite", "numerics/only_token_0"
_CAUSES = {
    REWARDS: "a reward function gave NaN or infinite rewards, which count as not scored: look at what it divides by",
    LOGPS: "the sampler gave log-probabilities that are NaN or infinite; their tokens are trained on uncorrected: "
    "look at the engine's precision (rollout.dtype) and its log",
    TOKEN_0: "completions are of token 0 only, which is what a sampler gives whose logits are NaN: look at the weights "
    "that it has, its precision (rollout.dtype) and its attention kernel",
}
_LARGEST = float(torch.finfo(torch.float32).max)
_FEWEST_TOKENS = 2  # one token 0 may be an end of sequence


class Sources:
    """Counts and takes out what isn't finite in a training's generations. Rewards may be counted in any thread."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """`tell` takes a line, the first time that a cause is beyond `ALARM_SHARE`."""
        self._tell, self._told = tell, set[str]()
        self._lock = threading.Lock()
        self._bad = self._scored = 0

    @contextlib.contextmanager
    def listening(self, trainer: Any) -> Iterator[None]:
        """Inside, TRL calls the trainer's reward functions through `checked`."""
        usual = trainer.reward_funcs
        trainer.reward_funcs = [self.checked(function) for function in usual]
        try:
            yield
        finally:
            trainer.reward_funcs = usual

    def checked(self, function: Any) -> Any:
        """A reward function whose rewards that aren't finite are None. A model is left as it is: see `of_models`."""
        if isinstance(function, torch.nn.Module):
            return function
        if is_async_callable(function):

            async def heard_later(**keywords: Any) -> list[float | None]:
                return self.finite(await function(**keywords))

            return heard_later

        def heard(**keywords: Any) -> list[float | None]:
            return self.finite(function(**keywords))

        return heard

    def finite(self, rewards: Sequence[Any]) -> list[float | None]:
        """The same with None for those that aren't finite in float32, which are counted."""
        found = [reward if reward is None or abs(float(reward)) <= _LARGEST else None for reward in rewards]
        bad = sum(mine is None and given is not None for mine, given in zip(found, rewards, strict=True))
        with self._lock:
            self._bad, self._scored = self._bad + bad, self._scored + len(found)
        return found

    def of_models(self, rewards_BF: torch.Tensor, functions: Sequence[Any], mine: slice) -> torch.Tensor:
        """Rewards of all ranks with NaN for what a reward model gave beyond the finite numbers; those of this rank's
        rows, `mine`, are counted."""
        models_F = torch.tensor([isinstance(each, torch.nn.Module) for each in functions], device=rewards_BF.device)
        bad_BF = ~rewards_BF.isfinite() & models_F
        if bool(models_F.any()):
            with self._lock:
                self._bad += int(bad_BF[mine].sum())
                self._scored += int(models_F.sum()) * (mine.stop - mine.start)
        return rewards_BF.masked_fill(bad_BF, torch.nan)

    def take(self) -> tuple[float, float]:
        """Rewards that weren't finite since the last call, and how many were given, on this rank."""
        with self._lock:
            taken = float(self._bad), float(self._scored)
            self._bad = self._scored = 0
        return taken

    def judge(self, measured: Mapping[str, float], step: int) -> None:
        """The metrics of a generation, of all ranks: say once what is beyond the bound."""
        for name, cause in _CAUSES.items():
            share = measured.get(name, 0.0)
            if not math.isnan(share) and share > ALARM_SHARE and name not in self._told:
                self._told.add(name)
                self._tell(f"ALARM: step {step}: {cause} ({share:.1%}; {name} in metrics.jsonl). The run goes on.")


def known_logps(completion: Completion) -> list[float]:
    """The sampler's log-probabilities, NaN where they aren't finite: TRL takes the ratio 1 there."""
    logps_C = completion.logps
    known: list[float] = np.where(np.isfinite(logps_C), logps_C, np.nan).tolist()
    return known


def logps_not_finite(completions: Sequence[Completion]) -> int:
    """How many completions have a log-probability that isn't finite."""
    return sum(not bool(np.isfinite(each.logps).all()) for each in completions)


def only_token_0(completions: Sequence[Completion]) -> int:
    """How many completions are of token 0 only."""
    return sum(len(each.token_ids) >= _FEWEST_TOKENS and not bool(each.token_ids.any()) for each in completions)
