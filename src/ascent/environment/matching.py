"""Which known faults a log shows. Evidence that belongs together stands in one place of the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ascent.environment.known_faults import Fault, Pattern
from ascent.environment.log_view import Evidence, Found, Log


@dataclass(frozen=True)
class Match:
    """A fault that a log shows, the lines it rests on, and their places among the distinct lines."""

    fault: Fault
    evidence: tuple[Evidence, ...]
    places: tuple[int, ...]


def matches(log: Log, faults: Iterable[Fault]) -> list[Match]:
    """All faults that the log shows. Lines that a note accounts for are no evidence of a catch-all."""
    every = list(faults)
    notes = [found for fault in every if fault.level == "note" and (found := match(log, fault))]
    accounted = [evidence.line for note in notes for evidence in note.evidence if evidence.line]
    rest = (match(log, fault, accounted if fault.catch_all else ()) for fault in every if fault.level != "note")
    return [*notes, *(each for each in rest if each is not None)]


def match(log: Log, fault: Fault, accounted: Collection[int] = ()) -> Match | None:
    """The first place at which one of the fault's lists is complete and nothing rules it out.

    A first line with one of the numbers in ``accounted`` is no evidence.
    """
    if any(log.places(pattern) for pattern in fault.unless if pattern.anywhere):
        return None
    excluded = [place.place for pattern in fault.unless if not pattern.anywhere for place in log.places(pattern)]
    for every in fault.when:
        found = _together(log, every, excluded, accounted)
        if found:
            evidence = dict.fromkeys(each.evidence for each in sorted(found, key=lambda each: each.evidence.line))
            return Match(fault, tuple(evidence), tuple(each.place for each in found if each.place >= 0))
    return None


def _together(log: Log, every: Sequence[Pattern], excluded: Sequence[int], accounted: Collection[int]) -> list[Found]:
    """Evidence for each of the patterns, in one place where they have one; empty when there is none."""
    whole = [log.places(pattern) for pattern in every if pattern.of_the_log]
    local = [log.places(pattern) for pattern in every if not pattern.of_the_log]
    if not all(whole) or not all(local):
        return []
    context = [places[0] for places in whole]
    if not local:
        return context
    anchors, others = local[0], local[1:]
    for anchor in anchors:
        if anchor.evidence.line in accounted or any(
            place >= 0 and log.same_line(anchor.place, place) for place in excluded
        ):
            continue
        beside = [_nearest(log, anchor, places) for places in others]
        if all(beside):
            return [anchor, *(each for each in beside if each is not None), *context]
    return []


def _nearest(log: Log, anchor: Found, places: Sequence[Found]) -> Found | None:
    near = [each for each in places if log.near(anchor.place, each.place)]
    return min(near, key=lambda each: abs(each.place - anchor.place)) if near else None
