"""What pages ask of the index: lists, neighbours, groups, counts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ascent.report.page.rollout_files import UnreadableError, read_rows
from ascent.report.page.rollout_filter import STALE, Filter
from ascent.report.page.rollout_index import RolloutIndex
from ascent.report.page.text_search import Hits, search

A_PAGE = 50
_KEPT_SEARCHES = 4
_NEAR = 200  # how far a completion may have moved in a list that grew since the link was made
LIST_COLUMNS = ("program", "completion", "error")


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a list. `hits` is None where no text was searched for."""

    rows: list[dict[str, Any]]
    total: int
    first: int
    hits: Hits | None = None

    @property
    def last(self) -> int:
        """Place of the last row, from 0."""
        return self.first + len(self.rows) - 1


@dataclass(slots=True)
class Rollouts:
    """Questions about a run's completions. The last text searches are kept, so that the next page is there at once."""

    index: RolloutIndex
    _searches: dict[tuple[str, int], Hits] = field(default_factory=dict)
    _searching: threading.Lock = field(default_factory=threading.Lock)

    def listing(self, wanted: Filter, first: int = 0, most: int = A_PAGE) -> Listing:
        """The completions that fit, from the `first` on."""
        condition, values = wanted.condition()
        hits = self._hits(wanted)
        joined = "" if hits is None else " SEMI JOIN found USING (file, row)"
        with self.index.cursor() as cursor:
            if hits is not None:
                cursor.register("found", pa.table({"file": hits.files, "row": hits.rows}))
            source = f"FROM completions{joined} WHERE {condition}"
            counted = cursor.execute(f"SELECT count(*) {source}", values).fetchone()
            cursor.execute(f"SELECT * {source} ORDER BY {wanted.order} LIMIT ? OFFSET ?", [*values, most, first])
            names = [column[0] for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return Listing(rows, counted[0] if counted else 0, first, hits)

    def with_texts(self, rows: Sequence[dict[str, Any]], columns: Sequence[str] = LIST_COLUMNS) -> list[dict[str, Any]]:
        """The rows with these columns from their files; `unreadable` says why one has none."""
        by_file: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            by_file.setdefault(row["file"], []).append(place)
        filled = [dict(row) for row in rows]
        for number, places in by_file.items():
            file = self.index.files.get(number)
            try:
                if file is None:
                    raise UnreadableError("its file is gone")
                texts = read_rows(self.index.folder, file, [rows[place]["row"] for place in places], columns)
            except UnreadableError as error:
                for place in places:
                    filled[place] |= {**dict.fromkeys(columns), "unreadable": str(error)}
            else:
                for place, content in zip(places, texts, strict=True):
                    filled[place] |= content
        return filled

    def one(self, sample_id: str) -> dict[str, Any] | None:
        """A completion's row in the index, or None."""
        found = self.index.rows("SELECT * FROM completions WHERE sample_id = ? LIMIT 1", [sample_id])
        return found[0] if found else None

    def neighbours(self, wanted: Filter, sample_id: str, at: int) -> tuple[int | None, list[dict[str, Any]]]:
        """Where a completion stands in a list that had it at place `at`, and the rows before, at and after it.

        None where it is no longer near that place.
        """
        near = self.listing(wanted, max(0, at - _NEAR), 2 * _NEAR)
        ids = [row["sample_id"] for row in near.rows]
        if sample_id not in ids:
            return None, []
        place = ids.index(sample_id)
        return near.first + place, near.rows[max(0, place - 1) : place + 2]

    def group(self, group_id: str) -> list[dict[str, Any]]:
        """The completions of a group, in order."""
        return self.index.rows("SELECT * FROM completions WHERE group_id = ? ORDER BY place LIMIT 1000", [group_id])

    def counts(self) -> dict[str, int]:
        """How many of training's completions there are, and of those that deserve a look."""
        return self.index.rows(
            f"""SELECT count(*) AS completions, count(*) FILTER (hollow) AS hollow,
                count(*) FILTER (outcome IN ('tampered', 'forbidden')) AS tampered,
                count(*) FILTER (outcome = 'timeout') AS timeouts,
                count(*) FILTER (NOT compiled) AS broken,
                count(*) FILTER ({STALE}) AS stale,
                count(*) FILTER (finish_reason = 'length') AS cut,
                count(*) FILTER (trim(markers) <> '') AS marked,
                count(hidden_tests) AS with_hidden, count(markers) AS with_markers,
                coalesce(min(step), 0) AS first_step, coalesce(max(step), 0) AS last_step
                FROM completions WHERE evaluation IS NULL"""
        )[0]

    def names(self) -> dict[str, list[str]]:
        """What can be chosen in the filter: evaluations and markers that occur."""
        evaluations = self.index.rows(
            "SELECT DISTINCT evaluation AS name FROM completions WHERE evaluation IS NOT NULL ORDER BY 1 LIMIT 50"
        )
        markers = self.index.rows(
            "SELECT DISTINCT unnest(string_split(trim(markers), ' ')) AS name FROM completions ORDER BY 1 LIMIT 50"
        )
        return {
            "evaluations": [row["name"] for row in evaluations],
            "markers": [row["name"] for row in markers if row["name"]],
        }

    def _hits(self, wanted: Filter) -> Hits | None:
        if not wanted.q:
            return None
        with self._searching:  # one at a time: a second one would only slow the first
            key = wanted.address(sort=""), self.index.version
            if key not in self._searches:
                while len(self._searches) >= _KEPT_SEARCHES:
                    self._searches.pop(next(iter(self._searches)))
                self._searches[key] = search(self.index, wanted)
            return self._searches[key]
