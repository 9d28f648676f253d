"""The project's own task format: one JSON object a line, also described by `schema/task.schema.json`.

Keys: `id`, `prompt`, `visible_tests`, `hidden_tests`, `entry_point`, `language`, `limits`, `family`,
`prefix`, `prelude`, `reference`: the fields of `ascent.types.Task`. Test values are encoded as `ascent.tasks.values`
says.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

from ascent.errors import InputError
from ascent.sandbox.types import AssertTest, FunctionTest, Language, Limits, Program, StdioTest, Test
from ascent.tasks.rows import (
    Row,
    RowError,
    kind_of,
    list_field,
    optional_text_field,
    parse_json,
    parse_python,
    text_field,
)
from ascent.tasks.values import decode_value, encode_value
from ascent.types import Message, Task

SCHEMA_PATH = Path(__file__).with_name("schema") / "task.schema.json"
LANGUAGES: tuple[str, ...] = get_args(Language)
ROLES = ("system", "user", "assistant")
_TASK_KEYS = tuple(field.name for field in fields(Task))
_TEST_KEYS = {
    "function": (
        "kind",
        "function",
        "args",
        "expected",
        "kwargs",
        "tolerance",
        "unordered",
        "mutated",
        "as_json",
        "or_in_list",
    ),
    "stdio": ("kind", "stdin", "stdout", "tolerance"),
    "assert": ("kind", "code", "setup", "in_process"),
}
_INTEGER_LIMITS = ("memory_bytes", "output_bytes", "file_bytes", "scratch_bytes", "processes", "open_files")
_BOOLEAN_LIMITS = ("stop_at_first_failure", "isolate_tests")
_SUFFIXES: dict[str, Language] = {".py": "python", ".c": "c", ".cc": "cpp", ".cpp": "cpp", ".rs": "rust"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})?")
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_own_row(row: Row) -> bool:
    """Whether the row's keys are those of this format."""
    return "visible_tests" in row or "hidden_tests" in row


def task_from_row(row: Row) -> Task:
    """The task that a parsed line describes.

    Raises:
        RowError: a key is unknown, missing or of the wrong type; the message names it.
    """
    if str(row.get("schema", "")).startswith("ascent.tasks/"):
        raise RowError(
            "a run's own record of a task, with values as texts that may be cut; give the file that the run was "
            "trained on"
        )
    _refuse_unknown(row, _TASK_KEYS, "")
    entry_point = optional_text_field(row, "entry_point")
    if entry_point is not None:
        _check_name(entry_point, "'entry_point'")
    language = _language(row)
    visible = _tests(row, "visible_tests", entry_point, language)
    hidden = _tests(row, "hidden_tests", entry_point, language)
    if not visible and not hidden:
        raise RowError("the task has no test: give at least one in 'visible_tests' or 'hidden_tests'")
    return Task(
        id=text_field(row, "id", nonempty=True),
        prompt=_prompt(row),
        visible_tests=visible,
        hidden_tests=hidden,
        entry_point=entry_point,
        language=language,
        limits=_limits(row),
        family=text_field(row, "family", ""),
        prefix=text_field(row, "prefix", ""),
        prelude=_prelude(row, language),
        reference=optional_text_field(row, "reference"),
    )


def load_tests(path: Path, language: Language = "python") -> tuple[Test, ...]:
    """The tests in a JSON file: a list of objects, as in a task's `visible_tests`.

    Raises:
        InputError: the file can't be read, or a test is wrong; the message says which and how.
    """
    try:
        return _tests({"tests": parse_json(_read_text(path), "it")}, "tests", None, language)
    except RowError as error:
        raise InputError(f"{path}: {error}", "docs/sandbox.md shows a file of tests.") from None


def load_program(path: Path) -> Program:
    """The program in a file; its suffix tells the language.

    Raises:
        InputError: the file can't be read, or its suffix is unknown.
    """
    language = _SUFFIXES.get(path.suffix)
    if language is None:
        raise InputError(f"{path}: can't tell the language from {path.suffix!r}", f"Known: {', '.join(_SUFFIXES)}.")
    return Program(_read_text(path), language)


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: byte {error.start} can't be decoded") from None


def task_to_row(task: Task) -> dict[str, Any]:
    """The JSON object that `task_from_row` reads back as an equal task; fields at their default are left out.

    Raises:
        TypeError: a test holds a value that the format can't write.
    """
    prompt = task.prompt if isinstance(task.prompt, str) else [dict(message) for message in task.prompt]
    row: dict[str, Any] = {"id": task.id, "prompt": prompt}
    row["visible_tests"] = [_test_to_row(test) for test in task.visible_tests]
    row["hidden_tests"] = [_test_to_row(test) for test in task.hidden_tests]
    if task.limits is not None:
        row["limits"] = _changed_fields(task.limits)
    for key in ("entry_point", "language", "family", "prefix", "prelude", "reference"):
        if getattr(task, key) != Task.__dataclass_fields__[key].default:
            row[key] = getattr(task, key)
    return row


def dumps_task(task: Task) -> str:
    """The task as one line of JSON, without a newline."""
    row = task_to_row(task)
    line = json.dumps(row, ensure_ascii=False, allow_nan=False)
    # A lone surrogate can't be written as UTF-8; escaped it can.
    return json.dumps(row, allow_nan=False) if _SURROGATE.search(line) else line


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> int:
    """Write tasks to a JSONL file, whole or not at all; returns how many.

    Raises:
        InputError: the file can't be written.
        TypeError: a test holds a value that the format can't write.
    """
    path = Path(path)
    lines = [dumps_task(task) + "\n" for task in tasks]
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text("".join(lines), encoding="utf-8", newline="\n")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise InputError(
            f"can't write {path}: {error.strerror}", "Choose a folder that exists and may be written to."
        ) from None
    return len(lines)


def _refuse_unknown(row: Row, known: tuple[str, ...], where: str) -> None:
    for key in row:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise RowError(f"{where}unknown key {key!r}; {hint}")


def _check_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise RowError(f"{what} must be the name of a function, not {name!r}")


def _language(row: Row) -> Language:
    language = text_field(row, "language", "python")
    if language not in LANGUAGES:
        raise RowError(f"'language' must be one of {', '.join(LANGUAGES)}, not {language!r}")
    return language  # type: ignore[return-value]  # checked against the Literal's own values


def _prelude(row: Row, language: Language) -> str:
    prelude = text_field(row, "prelude", "")
    if prelude and language != "python":
        raise RowError(f"a task in {language} can have no 'prelude'")
    parse_python(prelude, "'prelude'")
    return prelude


def _prompt(row: Row) -> str | tuple[Message, ...]:
    if "prompt" not in row:
        raise RowError("key 'prompt' is missing")
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return text_field(row, "prompt", nonempty=True)
    if not isinstance(prompt, list) or not prompt:
        raise RowError(f"'prompt' must be text or a list of messages, not {prompt!r:.60}")
    return tuple(_message(message, f"prompt[{index}]") for index, message in enumerate(prompt))


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise RowError(f"{where} must be an object with the keys 'role' and 'content'")
    if message["role"] not in ROLES:
        raise RowError(f"{where}: 'role' must be one of {', '.join(ROLES)}, not {message['role']!r}")
    if not isinstance(message["content"], str):
        raise RowError(f"{where}: 'content' must be a string, not {kind_of(message['content'])}")
    return {"role": message["role"], "content": message["content"]}


def _limits(row: Row) -> Limits | None:
    value = row.get("limits")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RowError(f"'limits' must be an object, not {kind_of(value)}")
    _refuse_unknown(value, tuple(field.name for field in fields(Limits)), "limits: ")
    return Limits(**{key: _limit(key, number) for key, number in value.items()})


def _limit(key: str, value: Any) -> Any:
    if key in _BOOLEAN_LIMITS:
        if not isinstance(value, bool):
            raise RowError(f"limits: {key!r} must be true or false, not {value!r}")
        return value
    if key == "per_test_seconds" and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise RowError(f"limits: {key!r} must be a number above 0, not {value!r}")
    if key not in _INTEGER_LIMITS:
        return float(value)
    if value != int(value):
        raise RowError(f"limits: {key!r} must be a whole number, not {value!r}")
    return int(value)


def _tests(row: Row, key: str, entry_point: str | None, language: Language) -> tuple[Test, ...]:
    tests = []
    for index, value in enumerate(list_field(row, key, [])):
        where = f"{key}[{index}]"
        try:
            test = _test(value, entry_point)
        except RowError as error:
            raise RowError(f"{where}: {error}") from None
        if language != "python" and not isinstance(test, StdioTest):
            raise RowError(f"{where}: a task in {language} can have tests of kind 'stdio' only")
        tests.append(test)
    return tuple(tests)


def _test(row: Any, entry_point: str | None) -> Test:
    if not isinstance(row, dict):
        raise RowError(f"a test must be an object, not {kind_of(row)}")
    kind = text_field(row, "kind")
    if kind not in _TEST_KEYS:
        raise RowError(f"'kind' must be one of {', '.join(_TEST_KEYS)}, not {kind!r}")
    _refuse_unknown(row, _TEST_KEYS[kind], "")
    if kind == "stdio":
        return StdioTest(text_field(row, "stdin"), text_field(row, "stdout"), _tolerance(row))
    if kind == "assert":
        code, setup = text_field(row, "code", nonempty=True), text_field(row, "setup", "")
        return AssertTest(code=code, setup=setup, in_process=_flag(row, "in_process"))
    return _function_test(row, entry_point)


def _function_test(row: Row, entry_point: str | None) -> FunctionTest:
    if "function" not in row and entry_point is None:
        raise RowError("key 'function' is missing, and the task has no 'entry_point' to stand in for it")
    function = text_field(row, "function", entry_point)
    if not _FUNCTION.fullmatch(function):
        raise RowError(f"'function' must be the name of a function, or Class.method, not {function!r}")
    if "expected" not in row:
        raise RowError("key 'expected' is missing (write null where the function must return None)")
    kwargs = row.get("kwargs", {})
    if not isinstance(kwargs, dict):
        raise RowError(f"'kwargs' must be an object, not {kind_of(kwargs)}")
    return FunctionTest(
        function=function,
        args=tuple(decode_value(value) for value in list_field(row, "args")),
        expected=decode_value(row["expected"]),
        kwargs={name: decode_value(value) for name, value in kwargs.items()},
        tolerance=_tolerance(row),
        unordered=_flag(row, "unordered"),
        mutated=None if row.get("mutated") is None else tuple(map(decode_value, list_field(row, "mutated"))),
        as_json=_flag(row, "as_json"),
        or_in_list=_flag(row, "or_in_list"),
    )


def _flag(row: Row, key: str) -> bool:
    value = row.get(key, False)
    if not isinstance(value, bool):
        raise RowError(f"{key!r} must be true or false, not {value!r}")
    return value


def _tolerance(row: Row) -> float | None:
    value = row.get("tolerance")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise RowError(f"'tolerance' must be a number of at least 0, not {value!r}")
    return float(value)


def _test_to_row(test: Test) -> dict[str, Any]:
    if not isinstance(test, FunctionTest):
        return {"kind": test.kind, **_changed_fields(test)}
    encode: dict[str, Callable[[Any], Any]] = {
        "args": lambda values: [encode_value(value) for value in values],
        "mutated": lambda values: [encode_value(value) for value in values],
        "kwargs": lambda values: {name: encode_value(value) for name, value in values.items()},
        "expected": encode_value,
    }
    row = {"kind": test.kind, **_changed_fields(test)}
    return {key: encode[key](value) if key in encode else value for key, value in row.items()}


def _changed_fields(value: Limits | Test) -> Mapping[str, Any]:
    changed = {}
    for field in fields(value):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if default is MISSING or getattr(value, field.name) != default:
            changed[field.name] = getattr(value, field.name)
    return changed
