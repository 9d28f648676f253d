"""Programs that try to get a pass that they didn't earn, to get out, or to do harm, by kind. Each is bounded, so that it does
little harm even where nothing holds it. `ascent sandbox attack` runs them, and so do the tests.

Sources are templates over what the arena offers (see `attack.py`): $SECRET a readable file with $TOKEN in it, $TARGET a
directory that all may write, $PORT a listening TCP port, $VICTIM a process id, $UNIX a listening Unix socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ascent.sandbox.types import Language

Kind = Literal[
    "leaving early",
    "lying values",
    "patching the harness",
    "forging the channel",
    "attacking the judge",
    "stealing",
    "reaching out",
    "doing harm",
    "output tricks",
    "compiling",
]


@dataclass(frozen=True, slots=True)
class Attack:
    """One program. `judged` says by which tests: `calls` (function, simple assert and tester at once), `stdio`, or `compare`
    (asserts that use operators on the returned value). `earned` is how many tests it may pass honestly, `before` a program
    run first on the same slot, whose traces it looks for."""

    name: str
    kind: Kind
    source: str
    judged: Literal["calls", "stdio", "compare"] = "calls"
    earned: int = 0
    language: Language = "python"
    before: str = ""


def attacks() -> tuple[Attack, ...]:
    """All of them."""
    from ascent.sandbox.hostile import (
        compiling,
        forging,
        harm,
        leaving,
        lying,
        output,
        patching,
        reaching,
        stealing,
        trusted_side,
    )

    modules = (leaving, lying, patching, forging, trusted_side, stealing, reaching, harm, output, compiling)
    return tuple(attack for module in modules for attack in module.ATTACKS)
