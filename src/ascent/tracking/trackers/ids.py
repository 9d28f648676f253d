"""`trackers.json`: the names that trackers gave to a run, so that a resumed run goes on in theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ascent.errors import InputError
from ascent.tracking.run_directory import write_json

SCHEMA = "ascent.trackers/1"

Ids = dict[str, dict[str, str]]  # by tracker: `run_id` where it has one, and what else it names


def read_ids(path: Path) -> Ids:
    """What `keep_id` wrote. Raises InputError for other content."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != SCHEMA:
            raise ValueError(f"expected the schema {SCHEMA}")
        return {str(name): {str(key): str(value) for key, value in each.items()} for name, each in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not what a run writes: {type(error).__name__}: {error}",
            "Move it away: trackers then begin a run of their own.",
        ) from error


def keep_id(path: Path, tracker: str, named: Mapping[str, str]) -> None:
    """Write down what a tracker calls this run, beside what others do."""
    kept = read_ids(path) if path.is_file() else {}
    if kept.get(tracker) != dict(named):
        write_json(path, {"schema": SCHEMA, **kept, tracker: dict(named)})
