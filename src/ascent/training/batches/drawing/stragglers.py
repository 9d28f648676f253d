"""Groups that were not complete when their generation was closed, and go on in the next.

A generation that is over-sampled begins with more groups than it needs, and is closed as soon as enough of them are
complete: nobody waits for its longest completions. From RollPacker (Gao et al. 2025, arXiv:2509.21009) and APRIL (Zhou
et al. 2025, arXiv:2509.18521). Nothing that was sampled is lost: completions that were broken off go on from where they
were, and those of their group that had ended wait for them with their scores, so that a group is trained on as a whole.

Which groups come first is no accident: those with short completions. They are trained on sooner than others, but others
are only late, by at most `oldest` generations, after which a generation is not closed without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ascent.training.batches.drawing.prompts import Drawn
from ascent.training.step.groups import LocalGroup


@dataclass(frozen=True, slots=True, eq=False)
class Straggler:
    """`group` has been begun; `texts` are of its completions that ended, by index. `age` is how many generations were
    closed without it, at least 1."""

    group: LocalGroup
    drawn: Drawn
    texts: Mapping[int, str]
    age: int

    @property
    def tokens(self) -> int:
        """How many were sampled."""
        begun = self.group.begun
        return 0 if begun is None else sum(len(each.token_ids) for each in (*begun.ended, *begun.parts))


@dataclass(frozen=True, slots=True)
class Closing:
    """When a generation is closed early: never while a group waits that was carried over `oldest` times already."""

    oldest: int
