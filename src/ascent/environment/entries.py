"""Entries of data that lie in the files of a folder: reads all of them, and names file and entry where one is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One entry: the file it stands in, its id, and its fields, which are checked as they are read.

    Everything here raises ValueError that names file, entry and field.
    """

    file: str
    id: str
    fields: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.fields, dict):
            raise self.wrong(f"expected a table, not {self.fields!r}")

    def wrong(self, what: str) -> ValueError:
        """The error that tells what is wrong with this entry."""
        return ValueError(f"{self.file}: entry {self.id!r}: {what}")

    def expect_only(self, *known: str) -> None:
        """Refuse fields that have no meaning, such as a misspelt one."""
        unknown = sorted(set(self.fields) - set(known))
        if unknown:
            raise self.wrong(f"unknown field {', '.join(unknown)}; expected only {', '.join(sorted(known))}")

    def text(self, field: str, default: str | None = None) -> str:
        """A field that holds text; without a default it must be there."""
        value = self._value(field, default)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{field} must be a text that isn't empty, not {value!r}")
        return value

    def texts(self, field: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A field that holds a list of texts; without a default it must be there and not be empty."""
        if default is not None and field not in self.fields:
            return default
        value = self._value(field, None)
        if not _is_texts(value):
            raise self.wrong(f"{field} must be a list of texts that isn't empty, not {value!r}")
        return tuple(value)

    def lists_of_texts(self, field: str) -> tuple[tuple[str, ...], ...]:
        """A field that holds a list of lists of texts; it must be there, and none may be empty."""
        value = self._value(field, None)
        if not isinstance(value, list) or not value or not all(_is_texts(each) for each in value):
            raise self.wrong(f"{field} must be a list of lists of texts, none of them empty, not {value!r}")
        return tuple(tuple(each) for each in value)

    def flag(self, field: str) -> bool:
        """A field that is true or false; false where it isn't there."""
        value = self.fields.get(field, False)
        if not isinstance(value, bool):
            raise self.wrong(f"{field} must be true or false, not {value!r}")
        return value

    def number(self, field: str, *, default: float, low: float, high: float) -> float:
        """A field that holds a number from low to high."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(f"{field} must be a number from {low} to {high}, not {value!r}")
        return value

    def whole(self, field: str, *, default: int, low: int, high: int) -> int:
        """A field that holds a whole number from low to high."""
        value = self.number(field, default=default, low=low, high=high)
        if not isinstance(value, int):
            raise self.wrong(f"{field} must be a whole number, not {value!r}")
        return value

    def _value(self, field: str, default: Any) -> Any:
        value = self.fields.get(field, default)
        if value is None:
            raise self.wrong(f"{field} is missing")
        return value


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each.strip() for each in value)


def read_files(folder: Traversable) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, content) of every TOML file of a folder, in the order of their names.

    Raises ValueError for a file that can't be read as TOML, and for a folder without any.
    """
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    if not files:
        raise ValueError(f"{folder}: no *.toml files")
    for file in files:
        name = f"{folder.name}/{file.name}"
        try:
            content = tomllib.loads(file.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{name}: {error}") from error
        yield name, content


def by_id(entries: Iterable[Entry]) -> dict[str, Entry]:
    """The entries by their ids; ValueError names both files where an id stands twice."""
    known: dict[str, Entry] = {}
    for entry in entries:
        if entry.id in known:
            raise entry.wrong(f"the id stands in {known[entry.id].file} already")
        known[entry.id] = entry
    return known
