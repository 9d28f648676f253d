"""The project's own task format: round trip, agreement of reader and schema, messages for malformed rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.sandbox.types import AssertTest, FunctionTest, Limits, StdioTest
from ascent.tasks.jsonl import SCHEMA_PATH, dumps_task, task_from_row, task_to_row, write_tasks
from ascent.tasks.loading import load_tasks
from ascent.tasks.rows import RowError
from ascent.tasks.values import decode_value, encode_value
from ascent.types import Task

SCHEMA = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

FULL = Task(
    id="own/1",
    prompt=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write f."}),
    visible_tests=(
        FunctionTest("f", (1, (2, 3)), {1, 2}, {"key": math.inf}, 1e-6, True, (1, (2, 3))),
        StdioTest("1\n", "2\n"),
    ),
    hidden_tests=(AssertTest("assert f(1) == 2", "import math"),),
    entry_point="f",
    limits=Limits(cpu_seconds=1.5, memory_bytes=2**28, stop_at_first_failure=True),
    family="own",
    prefix="import math\n",
    reference="def f(*a): ...",
)

hashables = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
values = st.recursive(
    hashables | st.sets(hashables, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashables | st.sampled_from(["$tuple", "$x", "$"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Equal with equal types all the way down (1, 1.0 and True differ; so do 0.0 and -0.0)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left.items(), right.items(), strict=True))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set):
        return sorted(map(repr, left)) == sorted(map(repr, right))
    return repr(left) == repr(right)


@given(values)
@settings(max_examples=300)
def test_value_survives_json(value: Any) -> None:
    text = json.dumps(encode_value(value), allow_nan=False)
    assert same(decode_value(json.loads(text)), value)


@given(values)
@settings(max_examples=100)
def test_encoded_value_satisfies_schema(value: Any) -> None:
    row = {"id": "a", "prompt": "p", "hidden_tests": [function_test(args=[encode_value(value)])]}
    VALIDATOR.validate(row)


def test_nan_survives() -> None:
    assert math.isnan(decode_value(encode_value(math.nan)))


@pytest.mark.parametrize("value", [object(), b"x", frozenset({1}), [1j], {"a": range(3)}])
def test_value_without_encoding_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="can't be written"):
        encode_value(value)


def test_task_round_trip(tmp_path: Path) -> None:
    plain = Task("own/2", "Schreibe „f“.\u2028 \ud800", (), (StdioTest("", "x"),))
    assert write_tasks(tmp_path / "t.jsonl", [FULL, plain]) == 2
    assert load_tasks(tmp_path / "t.jsonl").tasks == (FULL, plain)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_written_task_satisfies_schema() -> None:
    VALIDATOR.validate(json.loads(dumps_task(FULL)))


def test_defaults_are_left_out() -> None:
    row = task_to_row(Task("a", "p", (FunctionTest("f", (), None),)))
    assert set(row) == {"id", "prompt", "visible_tests", "hidden_tests"}
    assert row["visible_tests"] == [{"kind": "function", "function": "f", "args": [], "expected": None}]


def function_test(**changes: Any) -> dict[str, Any]:
    test = {"kind": "function", "function": "f", "args": [1], "expected": 2} | changes
    return {key: value for key, value in test.items() if value is not ...}


def row(**changes: Any) -> dict[str, Any]:
    base = {"id": "a", "prompt": "p", "visible_tests": [function_test()]} | changes
    return {key: value for key, value in base.items() if value is not ...}


def with_test(**changes: Any) -> dict[str, Any]:
    return row(visible_tests=[function_test(**changes)])


GOOD_ROWS: dict[str, dict[str, Any]] = {
    "smallest": row(),
    "messages": row(prompt=[{"role": "user", "content": "x"}]),
    "entry point stands in": row(entry_point="f", visible_tests=[function_test(function=...)]),
    "null optionals": row(entry_point=None, limits=None, reference=None),
    "limits": row(limits={"wall_seconds": 2, "memory_bytes": 1.0, "per_test_seconds": None}),
    "hidden only": row(visible_tests=..., hidden_tests=[{"kind": "stdio", "stdin": "", "stdout": "1"}]),
    "C": row(language="c", visible_tests=[{"kind": "stdio", "stdin": "", "stdout": "1"}]),
    "assert": row(visible_tests=[{"kind": "assert", "code": "assert f()", "setup": ""}]),
    "marks": with_test(args=[{"$tuple": [1, {"$set": [{"$tuple": []}]}]}, {"$dict": [[1, 2]]}, {"$float": "nan"}]),
    "two keys are no mark": with_test(expected={"$a": 1, "$b": 2}),
    "empty key": with_test(expected={"": 1}),
    "kwargs and flags": with_test(kwargs={"$n": 1}, tolerance=0, unordered=True, mutated=[[]]),
    "null flags": with_test(tolerance=None, mutated=None),
    "method": with_test(function="Solution.f", as_json=True, or_in_list=True),
    "stdio tolerance": row(visible_tests=[{"kind": "stdio", "stdin": "", "stdout": "0.5", "tolerance": 0.01}]),
    "stdio default": row(visible_tests=[{"kind": "stdio", "stdin": "", "stdout": "0.5", "tolerance": None}]),
    "prelude": row(prelude="from typing import *\n"),
}

BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no id": (row(id=...), "key 'id' is missing"),
    "id is a number": (row(id=7), "'id' must be a string, not a number"),
    "empty id": (row(id=" "), "'id' is empty"),
    "no prompt": (row(prompt=...), "key 'prompt' is missing"),
    "empty prompt": (row(prompt=""), "'prompt' is empty"),
    "no message": (row(prompt=[]), "list of messages"),
    "message without role": (row(prompt=[{"content": "x"}]), r"prompt\[0\]"),
    "unknown role": (row(prompt=[{"role": "robot", "content": "x"}]), "system, user, assistant"),
    "content is a list": (row(prompt=[{"role": "user", "content": []}]), "'content' must be a string"),
    "unknown key": (row(visible_test=[]), "did you mean 'visible_tests'"),
    "a run's record": (row(schema="ascent.tasks/1"), "give the file that the run was trained on"),
    "no tests": (row(visible_tests=[]), "no test"),
    "tests are no list": (row(hidden_tests={}), "'hidden_tests' must be a list, not an object"),
    "test is no object": (row(visible_tests=["assert f()"]), r"visible_tests\[0\]: a test must be an object"),
    "no kind": (with_test(kind=...), "key 'kind' is missing"),
    "unknown kind": (with_test(kind="unit"), "function, stdio, assert"),
    "no function": (with_test(function=...), "no 'entry_point'"),
    "null entry point": (row(entry_point=None, visible_tests=[function_test(function=...)]), "'entry_point'"),
    "function is no name": (with_test(function="a b"), "name of a function"),
    "entry point is no name": (row(entry_point="f()"), "name of a function"),
    "args missing": (with_test(args=...), "key 'args' is missing"),
    "args no list": (with_test(args=1), "'args' must be a list"),
    "expected missing": (with_test(expected=...), "write null"),
    "kwargs no object": (with_test(kwargs=[]), "'kwargs' must be an object"),
    "negative tolerance": (with_test(tolerance=-1), "at least 0"),
    "boolean tolerance": (with_test(tolerance=True), "at least 0"),
    "method of a method": (with_test(function="A.b.c"), "Class.method"),
    "as_json no boolean": (with_test(as_json=0), "true or false"),
    "or_in_list no boolean": (with_test(or_in_list="yes"), "true or false"),
    "stdio tolerance no number": (
        row(visible_tests=[{"kind": "stdio", "stdin": "", "stdout": "", "tolerance": "small"}]),
        "at least 0",
    ),
    "prelude no string": (row(prelude=["import re"]), "'prelude' must be a string"),
    "prelude in C": (
        row(language="c", prelude="x = 1", visible_tests=[{"kind": "stdio", "stdin": "", "stdout": "1"}]),
        "no 'prelude'",
    ),
    "unordered no boolean": (with_test(unordered=1), "true or false"),
    "misspelt test key": (with_test(expect=1), "did you mean 'expected'"),
    "unknown mark": (with_test(args=[{"$list": []}]), r"unknown mark '\$list'"),
    "mark with wrong content": (with_test(args=[{"$tuple": 1}]), r"'\$tuple' takes a list"),
    "unknown float": (with_test(expected={"$float": "NaN"}), r"'\$float' takes"),
    "pair is no list": (with_test(expected={"$dict": [{"$tuple": [1, 2]}]}), "pairs"),
    "pair of three": (with_test(expected={"$dict": [[1, 2, 3]]}), "pairs"),
    "nested bad mark": (with_test(expected={"a": [{"$set": 1}]}), r"'\$set' takes a list"),
    "stdio with args": (
        row(visible_tests=[{"kind": "stdio", "stdin": "", "stdout": "", "args": []}]),
        "'args'",
    ),
    "empty code": (row(visible_tests=[{"kind": "assert", "code": " "}]), "'code' is empty"),
    "unknown language": (row(language="perl"), "python, c, cpp, rust"),
    "function test in C": (row(language="c"), "'stdio' only"),
    "limits no object": (row(limits=3), "'limits' must be an object"),
    "unknown limit": (row(limits={"wall": 3}), "unknown key 'wall'"),
    "zero limit": (row(limits={"cpu_seconds": 0}), "above 0"),
    "half a byte": (row(limits={"memory_bytes": 0.5}), "whole number"),
    "limit no boolean": (row(limits={"stop_at_first_failure": 1}), "true or false"),
    "limit no number": (row(limits={"processes": "4"}), "above 0"),
    "family no string": (row(family=None), "'family' must be a string"),
}


@pytest.mark.parametrize("name", GOOD_ROWS)
def test_reader_and_schema_accept(name: str) -> None:
    VALIDATOR.validate(GOOD_ROWS[name])
    task = task_from_row(GOOD_ROWS[name])
    assert same(task_to_row(task), task_to_row(task_from_row(task_to_row(task))))


@pytest.mark.parametrize("name", BAD_ROWS)
def test_reader_and_schema_refuse(name: str) -> None:
    bad, reason = BAD_ROWS[name]
    assert not VALIDATOR.is_valid(bad)
    with pytest.raises(RowError, match=reason):
        task_from_row(bad)


def test_only_the_reader_knows_what_python_is() -> None:
    with pytest.raises(RowError, match="'prelude' is not valid Python"):
        task_from_row(row(prelude="import ("))


def test_only_the_reader_knows_what_can_be_hashed() -> None:
    unhashable = with_test(expected={"$set": [[1]]})
    VALIDATOR.validate(unhashable)
    with pytest.raises(RowError, match=r"use \"\$tuple\""):
        task_from_row(unhashable)


def test_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(Task.__dataclass_fields__)
    assert set(SCHEMA["$defs"]["limits"]["properties"]) == set(Limits.__dataclass_fields__)
