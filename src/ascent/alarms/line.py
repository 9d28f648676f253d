"""One line of metrics.jsonl, as the rules read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}  # JSON has no such numbers


@dataclass(frozen=True, slots=True)
class Line:
    """`values` are a line's; `step` is its optimizer step."""

    step: int
    values: Mapping[str, Any]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Line:
        """Raises ValueError for what is no line of a step."""
        step = values.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise ValueError(f"a line without the number of its step: {dict(values)!r:.80}")
        return cls(step, values)

    def number(self, name: str) -> float | None:
        """A finite figure; None where the line has none. `times.update` is one within an object."""
        value = self._figure(name)
        return value if value is not None and math.isfinite(value) else None

    def is_not_finite(self, name: str) -> bool:
        """Whether the line has this figure, and it is NaN or infinite."""
        value = self._figure(name)
        return value is not None and not math.isfinite(value)

    def _figure(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None and "." in name:
            holder, _, inner = name.partition(".")
            within = self.values.get(holder)
            value = within.get(inner) if isinstance(within, Mapping) else None
        if isinstance(value, str):
            return _NOT_FINITE.get(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value)
        except OverflowError:  # JSON's whole numbers have no end
            return math.inf if value > 0 else -math.inf

    def has(self, name: str) -> bool:
        """Whether the line has this finite figure, or this object."""
        return isinstance(self.values.get(name), Mapping) or self.number(name) is not None

    def share(self, part: str, whole: str = "signals/completions") -> float | None:
        """`part` / `whole`; None where either isn't there or the whole is 0."""
        counted, of = self.number(part), self.number(whole)
        return None if counted is None or not of else counted / of

    def column(self, name: str) -> Sequence[Any]:
        """A column of `signal_groups`, an entry for each group of the generation; empty where there is none."""
        groups = self.values.get("signal_groups")
        column = groups.get(name) if isinstance(groups, Mapping) else None
        return column if isinstance(column, Sequence) and not isinstance(column, str) else ()
