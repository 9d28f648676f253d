"""The index of reports that no rule was written for: well formed, and no reading names a fault that doesn't exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[2] / "src/ascent/environment/data/faults"
INDEXES = [
    Path(__file__).parent / "unseen" / name for name in ("open.toml", "sealed.toml", "second.toml", "third.toml")
]
CASES: list[dict[str, Any]] = [case for index in INDEXES for case in tomllib.loads(index.read_text("utf-8"))["case"]]
KINDS = {
    "log": {"cause", "fix", "ids", "cause_words", "fix_words", "visible"},
    "healthy": {"health", "harmless", "note_ids"},
    "env": {"form", "layer", "reading", "row", "versions", "must_say"},
    "npusmi": {"driver", "devices", "model", "supported", "health", "hbm_total_mb", "hbm_used_mb", "reading"},
}


def known() -> set[str]:
    found: set[str] = set()
    for path in DATA.glob("*.toml"):
        found.update(each["id"] for each in tomllib.loads(path.read_text("utf-8"))["fault"])
    return found


def test_ids_and_files_differ() -> None:
    ids = [case["id"] for case in CASES]
    assert len(set(ids)) == len(ids)
    assert [case["file"] for case in CASES] == [f"{each}.txt" for each in ids]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_reading(case: dict[str, Any]) -> None:
    assert case["source"]
    assert KINDS[case["kind"]] <= case.keys()
    for name in ("ids", "wrong_ids", "note_ids"):
        assert set(case.get(name, [])) <= known(), name
    assert not set(case.get("ids", [])) & set(case.get("wrong_ids", []))
    for name in ("cause_words", "fix_words", "must_say"):
        for words in case.get(name, []):
            re.compile(words)


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] == "log"], ids=lambda case: str(case["id"]))
def test_the_right_reading_has_the_words_it_asks_for(case: dict[str, Any]) -> None:
    """An answer with the index's own words must count as right."""
    for words in case["cause_words"]:
        assert re.search(words, case["cause"], re.IGNORECASE), words
    for words in case["fix_words"]:
        assert re.search(words, case["fix"], re.IGNORECASE), words


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] == "npusmi"], ids=lambda case: str(case["id"]))
def test_a_table_has_one_figure_a_device(case: dict[str, Any]) -> None:
    assert len(case["hbm_used_mb"]) in (0, case["devices"])
    assert all(used <= case["hbm_total_mb"] for used in case["hbm_used_mb"])
