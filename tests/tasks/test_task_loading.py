"""Sources, malformed files, and the split."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.errors import InputError
from ascent.sandbox.types import StdioTest
from ascent.tasks.loading import check_sources, load_tasks
from ascent.tasks.split import split_tasks
from ascent.types import Task


def row(task_id: str) -> dict[str, Any]:
    return {"id": task_id, "prompt": "p", "hidden_tests": [{"kind": "stdio", "stdin": "", "stdout": "1"}]}


def lines(*rows: Any) -> str:
    return "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in rows)


def test_malformed_lines_are_reported_by_number(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    text = lines(row("a"), "", "{oops", row("b") | {"prompt": ""}, '{"id": NaN}', "[" * 100_000, row("c"))
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b'{"id": "\xff"}')
    loaded = load_tasks(path)
    assert [task.id for task in loaded.tasks] == ["a", "c"]
    assert [item.line for item in loaded.rejected] == [3, 4, 5, 6, 8]
    reasons = [item.reason for item in loaded.rejected]
    assert reasons[0].startswith("the line is not valid JSON: Expecting property name")
    assert reasons[1] == "'prompt' is empty"
    assert reasons[2].startswith("NaN is no JSON")
    assert reasons[3] == "the line is nested too deeply"
    assert reasons[4] == "not UTF-8 text: byte 0xff at position 9"


def test_report(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(lines(row("a"), "1", "2", "3"))
    first, second, *_, last = load_tasks(path).report(most=2).split("\n")
    assert first == f"{path}: 1 task, 3 rows rejected"
    assert second == f"  {path}:2: a row must be an object, not a number"
    assert last == "  and 1 more"


def test_deep_values_do_not_crash(tmp_path: Path) -> None:
    test = json.dumps({"kind": "function", "function": "f", "args": ["DEEP"], "expected": 1})
    test = test.replace('"DEEP"', "[" * 700 + "]" * 700)
    path = tmp_path / "t.jsonl"
    path.write_text(lines(row("a"), f'{{"id": "b", "prompt": "p", "hidden_tests": [{test}]}}'))
    loaded = load_tasks(path)
    assert all("nested too deeply" in item.reason for item in loaded.rejected)
    assert loaded.tasks[0].id == "a"


def test_duplicate_ids_name_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(lines(row("a"), row("b"), row("a")))
    with pytest.raises(InputError, match="lines 1 and 3 both have the id 'a'"):
        load_tasks(path)


def test_json_array_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([row("a"), 3], indent=1))
    loaded = load_tasks(str(tmp_path / "t.json"))
    assert [task.id for task in loaded.tasks] == ["a"]
    assert loaded.rejected[0].line == 2
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(lines(row("z")).encode()))
    assert load_tasks(tmp_path / "t.jsonl.gz").tasks[0].id == "z"


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"task_id": 1, "text": "t", "test_list": ["assert f(1) == 1"], "test_setup_code": None},
        {"task_id": 2, "text": None, "test_list": ["assert f(1) == 1"], "test_setup_code": ""},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    loaded = load_tasks(tmp_path / "t.parquet")
    assert [task.id for task in loaded.tasks] == ["t/1"]
    assert loaded.rejected[0].line == 2


BAD_FILES = {
    "empty.jsonl": (b"", "holds no row"),
    "blank.jsonl": (b"\n \n", "holds no row"),
    "array.json": (b"[]", "holds no row"),
    "useless.jsonl": (b'{"a": 1}\n', r"no usable task; 1 row rejected:\n .*useless.jsonl:1: unknown format"),
    "object.json": (b'{"data": []}', "unknown format with the keys 'data'"),
    "broken.json": (b'[{"id": 1}', "not valid JSON"),
    "cut.jsonl.gz": (gzip.compress(b"x" * 100)[:-10], "not a whole gzip file"),
    "plain.jsonl.gz": (b"{}", "not a whole gzip file"),
    "tasks.csv": (b"a,b", "can't tell the format"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_unusable_file_says_why(tmp_path: Path, name: str) -> None:
    data, reason = BAD_FILES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=reason):
        load_tasks(tmp_path / name)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no task file") as caught:
        load_tasks("someone/hub-dataset")
    assert "not downloaded" in caught.value.mend
    with pytest.raises(InputError, match="is a folder"):
        load_tasks(tmp_path)


def tasks(count: int) -> list[Task]:
    return [Task(f"t{number}", "p", (StdioTest("", ""),)) for number in range(count)]


def ids(chosen: tuple[Task, ...]) -> set[str]:
    return {task.id for task in chosen}


@given(st.integers(2, 60), st.floats(0.001, 0.999) | st.integers(1, 59), st.integers(), st.randoms())
@settings(max_examples=200)
def test_split_properties(count: int, share: float, seed: int, rng: random.Random) -> None:
    if isinstance(share, int):
        share = min(share, count - 1)
    given_tasks = tasks(count)
    train, held_out = split_tasks(given_tasks, share, seed)
    assert train
    assert held_out
    assert ids(train) | ids(held_out) == ids(tuple(given_tasks))
    assert len(train) + len(held_out) == count
    if isinstance(share, int):
        assert len(held_out) == share
    rng.shuffle(given_tasks)
    assert ids(split_tasks(given_tasks, share, seed)[1]) == ids(held_out)


def test_new_tasks_move_no_old_one() -> None:
    before = split_tasks(tasks(100), 0.3, 1)
    after = split_tasks(tasks(300), 0.3, 1)
    assert ids(before[0]) <= ids(after[0])
    assert ids(before[1]) <= ids(after[1])
    assert 0.2 < len(after[1]) / 300 < 0.4
    assert ids(split_tasks(tasks(100), 0.3, 2)[1]) != ids(before[1])


def test_what_can_be_refused_without_reading_the_tasks(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("not read")
    for held_out in (0, 0.3, 7, str(file)):
        check_sources(str(file), held_out, 0)
    for source, held_out, reason in (
        ("absent.jsonl", 0.2, "no task file absent.jsonl"),
        (str(file), "absent.jsonl", "no task file absent.jsonl"),
        (str(file), 1.5, "is no share"),
        (str(file), -2, "must not be negative"),
        ("builtin:nothing", 0.2, "no built-in family 'nothing'"),
        ("builtin", 0.6, "not above 0.5"),
        ("builtin", 5000, r"of these 1416 built-in tasks at most \d+ can be held out"),
        ("builtin:instruct", 30, "leaves none to train on"),
    ):
        with pytest.raises(InputError, match=reason):
            check_sources(source, held_out, 0)


def test_nothing_held_out() -> None:
    assert split_tasks(tasks(3), 0, 0) == (tuple(tasks(3)), ())


@pytest.mark.parametrize(
    ("count", "share", "reason"),
    [
        (3, 3, "leaves none to train on"),
        (3, -1, "must not be negative"),
        (3, 1.0, "is no share"),
        (3, -0.1, "is no share"),
        (3, float("nan"), "share or a number"),
        (3, True, "share or a number"),
        (1, 1, "leaves none to train on"),
        (1, 0.999999999999, "none is left to train on"),
    ],
)
def test_impossible_split(count: int, share: float, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        split_tasks(tasks(count), share, 0)
