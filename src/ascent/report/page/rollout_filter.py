"""Which completions a page shows and in what order: the query of its address, and the SQL for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

# sort -> ORDER BY; each ends so that the order is whole
SORTS = {
    "newest": "step DESC, group_id, place",
    "oldest": "step, group_id, place",
    "best": "reward DESC NULLS LAST, step DESC, group_id, place",
    "worst": "reward NULLS LAST, step DESC, group_id, place",
    "longest": "tokens DESC NULLS LAST, step DESC, group_id, place",
    "slowest": "sample_seconds DESC NULLS LAST, step DESC, group_id, place",
    "advantage": "advantage DESC NULLS LAST, step DESC, group_id, place",
}
# outcome -> condition
OUTCOMES = {
    "solved": "solved",
    "unsolved": "NOT solved",
    "hollow": "hollow",
    "visible": "visible_tests > 0 AND visible_passed = visible_tests",
    "failed": "outcome = 'failed'",
    "error": "outcome = 'error'",
    "timeout": "outcome = 'timeout'",
    "memory": "outcome = 'memory'",
    "forbidden": "outcome = 'forbidden'",
    "tampered": "outcome = 'tampered'",
    "broken": "NOT compiled",
    "unjudged": "reward IS NULL",
}
FIELDS = ("completion", "program", "prompt", "error")
STALE = "evaluation IS NULL AND step - 1 - weight_version > 0"
_KEPT = {"yes": "kept", "no": "NOT kept AND evaluation IS NULL"}
_MOST = 500  # characters of one value


@dataclass(frozen=True, slots=True)
class Filter:
    """What is asked for; every field is text from an address, and empty where it doesn't matter.

    `of` is "training" (the default), "all", or an evaluation's name; `first` and `last` are steps.
    """

    q: str = ""
    field: str = ""
    of: str = ""
    task: str = ""
    group: str = ""
    first: str = ""
    last: str = ""
    outcome: str = ""
    kept: str = ""
    finish: str = ""
    stale: str = ""
    marker: str = ""
    sort: str = ""

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Filter:
        """The filter in an address; what it doesn't know is left out."""
        return cls(**{each.name: query.get(each.name, "")[:_MOST].strip() for each in fields(cls)})

    def address(self, **changes: str) -> str:
        """The query of an address: this filter with `changes`, which may name other things too (such as a page)."""
        own = {each.name for each in fields(self)}
        changed = replace(self, **{name: value for name, value in changes.items() if name in own})
        content = {each.name: getattr(changed, each.name) for each in fields(self)}
        content |= {name: value for name, value in changes.items() if name not in own}
        return urlencode({name: value for name, value in content.items() if value})

    @property
    def searched(self) -> str:
        """The column that `q` is looked for in."""
        return self.field if self.field in FIELDS else FIELDS[0]

    @property
    def order(self) -> str:
        """What stands after ORDER BY."""
        return SORTS.get(self.sort, SORTS["newest"])

    @property
    def narrowed(self) -> bool:
        """Whether anything is asked for but an order."""
        return bool(self.address(sort="", field=""))

    def condition(self) -> tuple[str, list[Any]]:
        """What stands after WHERE, and its values; the text search is not in it."""
        parts: list[str] = []
        values: list[Any] = []

        def add(part: str, *given: Any) -> None:
            parts.append(part)
            values.extend(given)

        if self.of in {"", "training"}:
            add("evaluation IS NULL")
        elif self.of != "all":
            add("evaluation = ?", self.of)
        for column, value in (("task_id", self.task), ("group_id", self.group), ("finish_reason", self.finish)):
            if value:
                add(f"{column} = ?", value)
        for sign, value in ((">=", self.first), ("<=", self.last)):
            if (step := whole_number(value)) is not None:
                add(f"step {sign} ?", step)
        if self.outcome in OUTCOMES:
            add(OUTCOMES[self.outcome])
        if self.kept in _KEPT:
            add(_KEPT[self.kept])
        if self.stale:
            add(STALE)
        if self.marker:
            add("contains(markers, ?)", f" {self.marker} ")
        return " AND ".join(parts) or "true", values


def whole_number(text: str | None) -> int | None:
    """The number that an address gives; None for anything but a few digits."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
