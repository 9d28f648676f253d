"""Faults and rules are read from all files of their folders; what is wrong is named with its file and entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.environment import entries, known_faults, rules

FAULT = """
[[fault]]
id = "{id}"
rank = {rank}
when = [["{id} was seen"]]
cause = "c"
mend = ["m"]
source = "s"
"""
RULE = """
[{number}]
title = "t"
levels = ["ok", "note"]
why = "w"
mend = ["m"]
source = "s"
"""


def test_new_entry_is_one_entry_in_any_file(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(FAULT.format(id="x", rank=60))
    (tmp_path / "new.toml").write_text(FAULT.format(id="y", rank=70))
    (tmp_path / "notes.txt").write_text("not read")
    assert {fault.id: fault.rank for fault in known_faults.read_faults(tmp_path)} == {"x": 60, "y": 70}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cause", "casue"), "area.toml: entry 'y': unknown field casue"),
        (('cause = "c"', ""), "area.toml: entry 'y': cause is missing"),
        (('["m"]', '"m"'), "area.toml: entry 'y': mend must be a list of texts"),
        (('[["y was seen"]]', '["y was seen"]'), "area.toml: entry 'y': when must be a list of lists"),
        (('[["y was seen"]]', '[["*"]]'), "area.toml: entry 'y': a pattern without text"),
        (('[["y was seen"]]', "[]"), "area.toml: entry 'y': when must be a list of lists"),
        (("rank = 60", "rank = 600"), "area.toml: entry 'y': rank must be a number from 0 to 100, not 600"),
        (("rank = 60", "rank = 6.5"), "area.toml: entry 'y': rank must be a whole number, not 6.5"),
        (("rank = 60", 'level = "bad"'), "area.toml: entry 'y': level must be one of error, warning, note, not 'bad'"),
        (("rank = 60", 'hides = ["z"]'), "area.toml: entry 'y': it hides 'z', which is no known fault"),
        (("rank = 60", 'hides = ["x"]'), "area.toml: entry 'y': it hides 'x', so its rank must be above 60"),
        (('id = "y"', ""), "area.toml: entry 'number 1': id is missing"),
        (('id = "y"', 'id = "x"'), "old.toml: entry 'x': the id stands in .*area.toml already"),
        (("[[fault]]", "[[faults]]"), "area.toml: expected tables .* not faults"),
        (("[[fault]]", "[fault]"), "area.toml: expected tables"),
        (('"c"', "c"), "area.toml: "),
    ],
)
def test_wrong_fault_is_named(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    (tmp_path / "old.toml").write_text(FAULT.format(id="x", rank=60))
    (tmp_path / "area.toml").write_text(FAULT.format(id="y", rank=60).replace(*change))
    with pytest.raises(ValueError, match=said):
        known_faults.read_faults(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RULE.format(number="A101"), "two.toml: entry 'A101': the id stands in .*one.toml already"),
        (RULE.format(number="A001"), "two.toml: entry 'A001': expected a table named by a rule's number"),
        (RULE.format(number="A102").replace('"note"', '"hint"'), "two.toml: entry 'A102': levels must be .* not hint"),
        (RULE.format(number="A102").replace("why", "because"), "two.toml: entry 'A102': unknown field because"),
        (RULE.format(number="A102").replace('title = "t"', ""), "two.toml: entry 'A102': title is missing"),
        ("A102 = 3", "two.toml: entry 'A102': expected a table, not 3"),
        (RULE.format(number="A102") * 2, r"two.toml: .*A102"),
    ],
)
def test_wrong_rule_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "one.toml").write_text(RULE.format(number="A101"))
    (tmp_path / "two.toml").write_text(text)
    with pytest.raises(ValueError, match=said):
        rules.read_rules(tmp_path)


def test_folder_without_entries_is_no_empty_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \*\.toml files"):
        list(entries.read_files(tmp_path))
