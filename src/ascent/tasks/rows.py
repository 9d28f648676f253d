"""Reading the fields of one data row. Every complaint is a `RowError` that says what was expected."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]


class RowError(ValueError):
    """A row can't be used. The message is the reason, in words for the person who owns the file."""


def reject_constant(name: str) -> Any:
    """`parse_constant` for `json.loads`: NaN and infinities are no JSON, so they are refused.

    Raises:
        RowError: always.
    """
    raise RowError(f'{name} is no JSON; write {{"$float": "nan"}}, {{"$float": "inf"}} or {{"$float": "-inf"}}')


def parse_json(text: str, what: str) -> Any:
    """The JSON value in `text`, strictly; `what` names it in the error.

    Raises:
        RowError: the text is no JSON, is nested too deeply or holds a number with too many digits.
    """
    try:
        return json.loads(text, parse_constant=reject_constant)
    except json.JSONDecodeError as error:
        raise RowError(f"{what} is not valid JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise RowError(f"{what} is nested too deeply") from None
    except RowError:
        raise
    except ValueError as error:  # an integer beyond sys.get_int_max_str_digits()
        raise RowError(f"{what} holds a number that can't be read: {error}") from None


def parse_python(code: str, what: str) -> ast.Module:
    """The syntax tree of Python source, which is not run; `what` names it in the error.

    Raises:
        RowError: the source is not valid Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubtful escape sequences in a data set are not ours to report
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowError(f"{what} is not valid Python: {error or type(error).__name__}: {code!r:.80}") from None


def kind_of(value: Any) -> str:
    """The JSON name of a value's type, for error messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


def text_field(row: Row, key: str, default: str | None = None, *, nonempty: bool = False) -> str:
    """`row[key]`, which must be a string; `default` (None: the key is required) when the key is absent.

    Raises:
        RowError: the key is missing, not a string, or empty where it must not be.
    """
    if key not in row:
        if default is None:
            raise RowError(f"key {key!r} is missing")
        return default
    value = row[key]
    if not isinstance(value, str):
        raise RowError(f"{key!r} must be a string, not {kind_of(value)}")
    if nonempty and not value.strip():
        raise RowError(f"{key!r} is empty")
    return value


def optional_text_field(row: Row, key: str) -> str | None:
    """`row[key]`, a string; None when the key is absent or null.

    Raises:
        RowError: anything else.
    """
    return None if row.get(key) is None else text_field(row, key)


def list_field(row: Row, key: str, default: list[Any] | None = None) -> list[Any]:
    """`row[key]`, which must be a list; `default` (None: the key is required) when the key is absent.

    Raises:
        RowError: the key is missing or not a list.
    """
    if key not in row:
        if default is None:
            raise RowError(f"key {key!r} is missing")
        return default
    value = row[key]
    if not isinstance(value, list):
        raise RowError(f"{key!r} must be a list, not {kind_of(value)}")
    return value


def text_list_field(row: Row, key: str) -> list[str]:
    """`row[key]`, a list of strings; empty when the key is absent or null.

    Raises:
        RowError: anything else.
    """
    values = [] if row.get(key) is None else list_field(row, key)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise RowError(f"{key}[{index}] must be a string, not {kind_of(value)}")
    return values


def first_text(row: Row, keys: tuple[str, ...]) -> str:
    """The first of `keys` that holds a non-empty string.

    Raises:
        RowError: none does.
    """
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value
    raise RowError(f"none of the keys {', '.join(map(repr, keys))} holds text")
