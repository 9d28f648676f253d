"""Which completions of a step are shown beside its figures, where all of them would be too many."""

from __future__ import annotations

from collections.abc import Sequence

from ascent.sandbox.types import Outcome
from ascent.tracking.rollouts import RolloutRecord

MOST = 16


def choose(records: Sequence[RolloutRecord], most: int = MOST) -> list[RolloutRecord]:
    """At most `most` of the records, each with another program: first those that pass all visible tests and not the
    hidden ones, that tamper, or that have marks; then the best and the worst in turns."""
    distinct = list({(record.task_id, record.program or record.completion): record for record in records}.values())
    suspicious = [record for record in distinct if _is_suspicious(record)][: most // 2]
    others = [record for record in distinct if not any(record is each for each in suspicious)]
    others.sort(key=lambda record: -1.0 if record.reward is None else record.reward)
    turns = [others[place // 2] if place % 2 else others[-1 - place // 2] for place in range(len(others))]
    return [*suspicious, *turns][:most]


def _is_suspicious(record: RolloutRecord) -> bool:
    hidden = record.audit_outcomes or record.outcomes[record.visible_tests or 0 :]
    visible = record.outcomes[: record.visible_tests or 0]
    games = bool(visible) and _all_pass(visible) and bool(hidden) and not _all_pass(hidden)
    tampers = any(outcome in (Outcome.TAMPERED, Outcome.FORBIDDEN) for outcome in record.outcomes)
    return games or tampers or bool(record.markers)


def _all_pass(outcomes: Sequence[str]) -> bool:
    return all(outcome == Outcome.PASSED for outcome in outcomes)
