"""Programs that try to get a pass that they didn't earn, to get out, or to do harm: one file a kind.

Each is bounded, so that it does little harm even where nothing holds it. `ascent sandbox attack` runs them,
and so do the tests. Sources are templates over what the arena offers (see `attack.py`): $SECRET a readable
file with $TOKEN in it, $TARGET a directory that all may write, $PORT a listening TCP port, $UNIX a listening
Unix socket, $VICTIM a process id.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ascent.sandbox.types import Language


@dataclass(frozen=True, slots=True)
class Attack:
    """One program. `judged` says by which tests: `calls` (function, simple assert and tester at once),
    `compare` (asserts that use operators on the returned value) or `stdio`. `earned` is how many of them it
    may pass honestly. `before` is a program run first on the same slot, whose traces this one looks for.
    """

    name: str
    kind: str
    source: str
    judged: Literal["calls", "stdio", "compare"] = "calls"
    earned: int = 0
    language: Language = "python"
    before: str = ""


_ANSWER = "\ndef solve(n): return n\n"
_GENERATED = {
    "parser": "x = " + "(" * 5000 + ")" * 5000 + _ANSWER,
    "null bytes": "x = '\x00'" + _ANSWER,
    "surrogates in the source": "x = '\ud800'" + _ANSWER,
}


def attacks() -> tuple[Attack, ...]:
    """All of them."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    written = [attack for file in files for attack in _read(tomllib.loads(file.read_text("utf-8")))]
    generated = [Attack(name, "doing harm", source) for name, source in _GENERATED.items()]
    return tuple(written + generated)


def _read(content: Mapping[str, Any]) -> Iterator[Attack]:
    preludes = content.get("preludes", {})
    for entry in content["attacks"]:
        fields = dict(entry)
        prelude = preludes[fields.pop("prelude")] if "prelude" in fields else ""
        yield Attack(kind=content["kind"], **{**fields, "source": prelude + fields["source"]})
