"""Runs programs that a model wrote. Imports nothing else of Ascent."""

from ascent.sandbox.process_per_program import Sandbox
from ascent.sandbox.types import (
    AssertTest,
    FunctionTest,
    Level,
    Limits,
    Outcome,
    Program,
    StdioTest,
    Test,
    Verdict,
)

__all__ = [
    "AssertTest",
    "FunctionTest",
    "Level",
    "Limits",
    "Outcome",
    "Program",
    "Sandbox",
    "StdioTest",
    "Test",
    "Verdict",
]
