"""What a task's prelude needs of a slot: Python that it can't run is refused, common modules are loaded beforehand."""

from __future__ import annotations

import ast
from functools import lru_cache

from ascent.sandbox.errors import InvalidTestError
from ascent.sandbox.types import Program

# Standard modules that preludes import. A slot that is asked for one loads it once: nothing else that a prelude names
# is ever imported outside of the process that is confined.
_LOADED_FOR_PRELUDES = frozenset({
    "array", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools",
    "heapq", "io", "itertools", "json", "math", "operator", "queue", "random", "re", "statistics", "string", "sys",
    "time", "typing",
})  # fmt: skip


def check_prelude(program: Program) -> None:
    """Raise InvalidTestError when a program's prelude can't be one."""
    if not program.prelude:
        return
    if program.language != "python":
        raise InvalidTestError(f"a {program.language} program takes no prelude")
    modules_of(program.prelude)


@lru_cache(maxsize=256)
def modules_of(prelude: str) -> tuple[str, ...]:
    """The common modules that a prelude imports. Raises InvalidTestError when it isn't Python."""
    if not prelude:
        return ()
    try:
        tree = ast.parse(prelude)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidTestError(f"the prelude isn't Python: {error or type(error).__name__}") from error
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return tuple(sorted(names & _LOADED_FOR_PRELUDES))
