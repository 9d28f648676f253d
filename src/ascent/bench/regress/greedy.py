"""Where a greedy completion leaves the recorded one, and whether that was a near tie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ascent.bench.regress.measure import Tokens
from ascent.bench.regress.record import GreedyText, PromptRecord


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token that differs, counted from 0, as text and id (None: there is none, it ended before).

    `margin` is by how much the old version preferred its own token, in nats of log-probability; with `at_least` it is
    known only that it was no less. `near_tie`: so little that rounding decides, or the old version's own runs did both.
    """

    place: int
    was: str
    now: str
    was_id: int | None
    now_id: int | None
    margin: float
    at_least: bool
    near_tie: bool

    def in_words(self) -> str:
        """For people."""
        if self.near_tie:
            return (
                f"token {self.place} of the greedy completion: {self.was!r} -> {self.now!r}, a near tie{self._margin()}"
            )
        return f"token {self.place} of the greedy completion: {self.was!r} -> {self.now!r}{self._margin()}"

    def _margin(self) -> str:
        return f" (margin {'at least ' if self.at_least else ''}{self.margin:.2g} nats)"


def common_length(one: Sequence[int], two: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    for place, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return place
    return min(len(one), len(two))


def first_divergence(old: PromptRecord, new: PromptRecord, near_tie: float) -> Divergence | None:
    """Of the new greedy completions that the old version never made, the one that leaves the reference without a near
    tie, or else first; None where there is no such completion."""
    known = {text.ids for text in old.greedy}
    found = [_divergence(old, text, near_tie) for text in new.greedy if text.ids not in known]
    return min(found, key=lambda each: (each.near_tie, each.place), default=None)


def _divergence(old: PromptRecord, text: GreedyText, near_tie: float) -> Divergence:
    reference = old.greedy[0]
    place = common_length(reference.ids, text.ids)
    was_id, now_id = (each.ids[place] if place < len(each.ids) else None for each in (reference, text))
    margin, exact = _margin(old, place, now_id)
    before: Tokens = text.ids[: place + 1]
    seen = any(each.ids[: place + 1] == before for each in old.greedy)
    return Divergence(
        place=place,
        was=_piece(reference, place),
        now=_piece(text, place),
        was_id=was_id,
        now_id=now_id,
        margin=margin,
        at_least=not exact,
        near_tie=seen or (exact and margin <= near_tie),
    )


def _margin(old: PromptRecord, place: int, token: int | None) -> tuple[float, bool]:
    """By how much the reference's token was more likely than another one, and whether that is exact: only the most
    likely other token is recorded."""
    at = len(old.continuation_ids) + place
    if at >= len(old.logps):
        return 0.0, False
    return max(0.0, old.logps[at] - old.rival_logps[at]), old.rivals[at] == token


def _piece(text: GreedyText, place: int) -> str:
    return text.pieces[place] if place < len(text.pieces) else "(end)"
