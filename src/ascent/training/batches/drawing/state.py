"""What drawing keeps from one generation to the next, and with a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from ascent.training.batches.drawing.history import History
from ascent.training.batches.drawing.scored_group import ScoredGroup
from ascent.training.batches.drawing.stragglers import Straggler


@dataclass(frozen=True, slots=True)
class RefillState:
    """`place` is the next one in this rank's order of prompts, `surplus` this rank's complete groups that are not
    trained on yet, the oldest first (with dynamic sampling, those with signal), `stragglers` its groups that go on. The
    others are of all ranks: `drop_share`, the smoothed share of groups without signal; `silent`, generations in a row
    without any signal; `told_filled`, whether it was said that one had to be filled up."""

    place: int = 0
    surplus: tuple[ScoredGroup, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    drop_share: float = 0.0
    silent: int = 0
    told_filled: bool = False
    history: History = field(default_factory=History)
