"""Tries out the level that a slot claims: a program of ours attempts what the level denies."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from ascent.sandbox.compiling import CompileCache
from ascent.sandbox.judge import Judge, make_plan
from ascent.sandbox.slot import Slot
from ascent.sandbox.types import FunctionTest, Level, Limits, Outcome, Program

_SOURCE = """
import os

def reads(path):
    try:
        return len(open(path).read())
    except OSError:
        return "denied"

def writes(path):
    try:
        open(path, "w").close()
    except OSError:
        return "denied"
    return "written"

def system_call(name, *arguments):
    import errno
    try:
        {
            "socket": lambda: __import__("_socket").socket(2, 1),
            "fork": lambda: os._exit(0) if os.fork() == 0 else None,
            "signal": lambda: os.kill(os.getppid(), 0),
        }[name]()
    except OSError as error:
        return "denied" if error.errno in (errno.EPERM, errno.EACCES) else f"errno {error.errno}"
    return "allowed"
"""


def holes(slot: Slot, level: Level) -> list[str]:
    """What the probing program could do although `level` denies it; empty is good. Raises SlotError."""
    if level == "none":
        return []
    handle, secret = tempfile.mkstemp(prefix="ascent-canary-")
    try:
        os.write(handle, b"secret")
        os.fchmod(handle, 0o644)
        os.close(handle)
        return _probe(slot, level, secret)
    finally:
        os.unlink(secret)


def _probe(slot: Slot, level: Level, secret: str) -> list[str]:
    attempts: list[tuple[str, str, tuple[Any, ...]]] = [
        ("open a socket", "system_call", ("socket",)),
        ("start a process", "system_call", ("fork",)),
        ("signal its slot", "system_call", ("signal",)),
        ("write outside its scratch directory", "writes", (f"{secret}.written",)),
        ("overwrite a file", "writes", (secret,)),
    ]
    if level != "syscall-only":
        attempts.append(("read a file of somebody else", "reads", (secret,)))
    program = Program(_SOURCE)
    tests = [FunctionTest(function, args, "denied") for _, function, args in attempts]
    verdict = Judge(slot, level, program, make_plan(program, tests, False), Limits(), CompileCache("")).verdict()
    return [
        f"{what} ({verdict.error})"
        for (what, _, _), outcome in zip(attempts, verdict.outcomes, strict=True)
        if outcome is not Outcome.PASSED
    ]
