"""Runs programs that a model wrote. Imports nothing else of Ascent.

with Sandbox() as sandbox:
    verdict = sandbox.submit(Program(source), [FunctionTest("double", (2,), 4)]).result()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ascent.sandbox.types import (
    LEVELS,
    AssertTest,
    FunctionTest,
    Language,
    Level,
    Limits,
    Outcome,
    Program,
    StdioTest,
    Test,
    Verdict,
)

if TYPE_CHECKING:
    from ascent.sandbox.errors import LevelUnavailableError, SandboxClosedError, SandboxError
    from ascent.sandbox.pool import Sandbox, SandboxStats

_LAZY = {
    "LevelUnavailableError": "errors",
    "Sandbox": "pool",
    "SandboxClosedError": "errors",
    "SandboxError": "errors",
    "SandboxStats": "pool",
}

__all__ = [
    "LEVELS",
    "AssertTest",
    "FunctionTest",
    "Language",
    "Level",
    "LevelUnavailableError",
    "Limits",
    "Outcome",
    "Program",
    "Sandbox",
    "SandboxClosedError",
    "SandboxError",
    "SandboxStats",
    "StdioTest",
    "Test",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ascent.sandbox' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(importlib.import_module(f"ascent.sandbox.{_LAZY[name]}"), name)
