"""Programs that try to get a pass that they didn't earn, to get out, or to do harm: those of all files here.

Each is bounded, so that it does little harm even where nothing holds it. `ascent sandbox attack` runs them,
and so do the tests. Sources are templates over what the arena offers (see `attack.py`): $SECRET a readable
file with $TOKEN in it, $TARGET a directory that all may write, $PORT a listening TCP port, $UNIX a listening
Unix socket, $VICTIM a process id.

A file holds attacks of one kind, and a kind may have several files. A new attack is one entry `[[attacks]]` in
one of them: the fields of `Attack`, and perhaps `prelude`, the name of a source from any file's `[preludes]` that
is put before its own.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal, get_args

from ascent.sandbox.types import Language

Judged = Literal["calls", "stdio", "compare"]


@dataclass(frozen=True, slots=True)
class Attack:
    """One program. `judged` says by which tests: `calls` (function, simple assert and tester at once),
    `compare` (asserts that use operators on the returned value) or `stdio`. `earned` is how many of them it
    may pass honestly. `before` is a program run first on the same slot, whose traces this one looks for.
    """

    name: str
    kind: str
    source: str
    judged: Judged = "calls"
    earned: int = 0
    language: Language = "python"
    before: str = ""


_ANSWER = "\ndef solve(n): return n\n"
_GENERATED = {
    "parser": "x = " + "(" * 5000 + ")" * 5000 + _ANSWER,
    "null bytes": "x = '\x00'" + _ANSWER,
    "surrogates in the source": "x = '\ud800'" + _ANSWER,
}


@functools.cache
def attacks() -> tuple[Attack, ...]:
    """All of them."""
    generated = [Attack(name, "doing harm", source) for name, source in _GENERATED.items()]
    return (*read_attacks(resources.files("ascent.sandbox.hostile")), *generated)


def read_attacks(folder: Traversable) -> tuple[Attack, ...]:
    """The attacks of every TOML file of a folder, in the order of the files' names.

    Raises ValueError that names the file and the attack that is wrong, or whose name stands twice.
    """
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    if not files:
        raise ValueError(f"{folder}: no *.toml files")
    contents = {file.name: _load(file) for file in files}
    preludes = _preludes(contents)
    known: dict[str, str] = dict.fromkeys(_GENERATED, "__init__.py")
    attacks = []
    for file, content in contents.items():
        for attack in _read(file, content, preludes):
            if attack.name in known:
                raise ValueError(f"{file}: attack {attack.name!r}: the name stands in {known[attack.name]} already")
            known[attack.name] = file
            attacks.append(attack)
    return tuple(attacks)


def _load(file: Traversable) -> Mapping[str, Any]:
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name}: {error}") from error
    unknown = sorted(set(content) - {"kind", "preludes", "attacks"})
    if unknown or ("attacks" in content and not isinstance(content.get("kind"), str)):
        raise ValueError(f"{file.name}: expected kind, [preludes] and [[attacks]], found {', '.join(content)}")
    return content


def _preludes(contents: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What the attacks of all files may begin with, by name."""
    preludes: dict[str, str] = {}
    for file, content in contents.items():
        for name, source in content.get("preludes", {}).items():
            if name in preludes:
                raise ValueError(f"{file}: prelude {name!r} stands in another file already")
            preludes[name] = source
    return preludes


def _read(file: str, content: Mapping[str, Any], preludes: Mapping[str, str]) -> Iterator[Attack]:
    for place, entry in enumerate(content.get("attacks", ()), 1):
        where = f"{file}: attack {entry.get('name', place)!r}"
        fields = dict(entry)
        prelude = fields.pop("prelude", None)
        if prelude is not None and prelude not in preludes:
            raise ValueError(f"{where}: no prelude {prelude!r}; there are {', '.join(preludes) or 'none'}")
        try:
            attack = Attack(kind=content["kind"], **fields)
        except TypeError as error:
            raise ValueError(f"{where}: {error}") from error
        if attack.judged not in get_args(Judged) or attack.language not in get_args(Language):
            raise ValueError(f"{where}: unknown judged {attack.judged!r} or language {attack.language!r}")
        yield attack if prelude is None else replace(attack, source=preludes[prelude] + attack.source)
