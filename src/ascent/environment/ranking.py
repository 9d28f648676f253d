"""Of the faults that a log shows: which is the cause, what follows from it, and what only stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ascent.environment.log_view import Log
from ascent.environment.matching import Match

Role = Literal["primary", "also", "beside", "consequence"]
_PLACE: dict[Role, int] = {"primary": 0, "also": 1, "beside": 2, "consequence": 2}


@dataclass(frozen=True)
class Ranked:
    """A match and its role; ``head`` is the fault that it follows from or stands beside."""

    match: Match
    role: Role
    head: str = ""

    @property
    def alarm(self) -> bool:
        """Whether it is more than a note."""
        return self.match.fault.level in ("error", "warning")


def ranked(log: Log, found: Sequence[Match]) -> list[Ranked]:
    """The matches, the cause first, notes last.

    A catch-all says that something failed; it is a consequence wherever an entry says what. Of the rest the highest
    rank is the cause, of equal ranks the one seen first. What it hides follows from it, and what was read from the
    same lines or those around them stands beside it.
    """
    told = any(each.fault.level == "error" and not each.fault.catch_all for each in found)
    order = sorted(found, key=lambda each: _order(each, told))
    done: list[Ranked] = []
    for each in order:
        done.append(_placed(log, each, done))
    return sorted(done, key=lambda each: (not each.alarm and each.role != "primary", _PLACE[each.role]))


def _order(each: Match, told: bool) -> tuple[bool, bool, int, int, str]:
    fault = each.fault
    return (fault.level in ("note", "ok"), told and fault.catch_all, -fault.rank, each.evidence[0].line, fault.id)


def _placed(log: Log, each: Match, done: Sequence[Ranked]) -> Ranked:
    hiding = next((earlier.match.fault.id for earlier in done if each.fault.id in earlier.match.fault.hides), "")
    if hiding:
        return Ranked(each, "consequence", hiding)
    if not done:
        return Ranked(each, "primary")
    heads = [earlier.match for earlier in done if earlier.role in ("primary", "also") and earlier.alarm]
    if each.fault.level in ("note", "ok"):
        return Ranked(each, "also")
    errors = [head for head in heads if head.fault.level == "error"]
    if each.fault.catch_all and errors:
        return Ranked(each, "consequence", errors[0].fault.id)
    beside = next((head for head in errors if _one_place(log, each, head)), None)
    return Ranked(each, "also") if beside is None else Ranked(each, "beside", beside.fault.id)


def _one_place(log: Log, one: Match, other: Match) -> bool:
    return any(log.near(a, b) for a in one.places for b in other.places)
