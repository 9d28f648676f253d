"""May the rows of a loss be parted, and what is the weight of a part? Decided once for a training, from TRL's formulas.

Most of TRL's losses are sums over rows with a divisor that is known beforehand, so that any parts with the right
weights add up to the whole: their value, and their gradient, are those of the whole optimizer step as one micro-batch.
Some terms are means over the tokens of a micro-batch, or choose tokens by comparing all of them: there TRL's own
micro-batches keep their meaning and nothing is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ascent.training.batches.rows import Rows, count, tokens_in_loss

# what a part's weight is made of, in a step of `steps` micro-batches
Weighing = Literal["rows", "nothing", "tokens"]
_WEIGHING: dict[str, Weighing] = {
    "grpo": "rows",  # a mean over the micro-batch's rows
    "sapo": "rows",
    "luspo": "rows",
    "dr_grpo": "rows",  # divided by the micro-batch's rows times max_completion_length
    "dapo": "nothing",  # divided by the tokens of the whole generation
    "cispo": "nothing",
    "vespo": "nothing",
    "bnpo": "tokens",  # divided by the micro-batch's tokens: parts of a micro-batch, and not across them
}


@dataclass(frozen=True, slots=True)
class Parting:
    """`weighing` is None where rows can't be parted, and `why` says it; `skips` where rows with advantage 0 have no
    effect."""

    weighing: Weighing | None
    skips: bool
    why: str = ""

    def weight(self, part: Rows, whole: Rows, rows_of_step: int, steps: int) -> float:
        """What TRL's loss of a part of `whole`, a unit that may be parted, is multiplied with.

        `rows_of_step` counts this rank's rows of the optimizer step. TRL divides by `steps`, its micro-batches.
        """
        if self.weighing == "rows":
            return count(part) * steps / rows_of_step
        if self.weighing == "tokens":
            return tokens_in_loss(part) / max(tokens_in_loss(whole), 1.0)
        return 1.0


def parting_of(trainer: Any) -> Parting:
    """How the loss of a trainer may be parted."""
    coupled = _coupled_by(trainer)
    if coupled:
        return Parting(None, skips=False, why=coupled)
    return Parting(_WEIGHING[trainer.loss_type], skips=trainer.beta == 0.0)


def _coupled_by(trainer: Any) -> str:
    if trainer.loss_type not in _WEIGHING:
        return f"loss_type={trainer.loss_type}"
    if trainer._algorithm.couples_rows:
        return f"algorithm {trainer._algorithm.name}"
    if trainer._entropy_bonus_enabled:
        return "the entropy bonus, a mean over the tokens of a micro-batch"
    if trainer.top_entropy_quantile < 1.0:
        return "top_entropy_quantile, which compares the tokens of a micro-batch"
    if trainer.aux_loss_enabled:
        return "the router's loss, which balances the tokens of a micro-batch"
    if trainer.is_deepspeed_enabled:
        return "DeepSpeed, which counts backward passes itself"
    return ""
