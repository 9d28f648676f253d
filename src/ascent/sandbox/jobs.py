"""One job of a slot: what it is asked, and what its end means."""

from __future__ import annotations

import signal
from typing import Any

from ascent.sandbox.slot import Ending
from ascent.sandbox.types import Limits

_VALUES_PER_OUTPUT = 4  # returned values may be longer than what is printed: they are never shown to anybody
_ROOM_FOR_STATUS = 1 << 16


def make_job(kind: str, limits: Limits, wall: float, cpu: float) -> dict[str, Any]:
    """The header of a job under `limits`, with `wall` and `cpu` seconds left; see `inside/supervisor.py`."""
    return {
        "kind": kind,
        "profile": "run",
        "answers": 0,
        "prelude_bytes": 0,
        "prelude_modules": [],
        "source_bytes": 0,
        "stdin_bytes": 0,
        "wall": max(0.01, wall),
        "cpu": max(0.01, cpu),
        "per_test": limits.per_test_seconds,
        "memory": limits.memory_bytes,
        "file": limits.file_bytes,
        "files": limits.open_files,
        "processes": limits.processes,
        "scratch": limits.scratch_bytes,
        "output_bytes": limits.output_bytes,
        "channel_bytes": _VALUES_PER_OUTPUT * limits.output_bytes + _ROOM_FOR_STATUS,
    }


_REASONS = {
    "output": ("failed", "the program printed more than {limits.output_bytes} bytes"),
    "threads": ("forbidden", "more than {limits.processes} threads"),
    "scratch": (
        "forbidden",
        "more than {limits.scratch_bytes} bytes or too many files in the scratch directory",
    ),
    "test": ("timeout", "a test took longer than {limits.per_test_seconds} s"),
    "wall": ("timeout", "more than {limits.wall_seconds} s"),
    "cpu": ("timeout", "more than {limits.cpu_seconds} s of CPU time"),
}
_SIGNALS = {
    signal.SIGXCPU: ("timeout", "more than {limits.cpu_seconds} s of CPU time"),
    signal.SIGSYS: ("forbidden", "a forbidden system call"),
    signal.SIGXFSZ: ("forbidden", "a file of more than {limits.file_bytes} bytes"),
    signal.SIGKILL: ("memory", "killed by the kernel, which was out of memory"),
}


def explain(ending: Ending, limits: Limits) -> tuple[str, str]:
    """The outcome of a test during which the program ended, and why in words."""
    if ending.reason is None and ending.killed:
        return (
            "error",
            "the test code ended early",
        )  # its tester did, and the program was still waiting for calls
    if ending.reason is not None:
        outcome, text = _REASONS[ending.reason]
    elif ending.signal is not None:
        name = signal.Signals(ending.signal).name if ending.signal < signal.SIGRTMIN else f"signal {ending.signal}"
        outcome, text = _SIGNALS.get(signal.Signals(ending.signal), ("error", f"the program was ended by {name}"))
    else:
        words = ending.err.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1][:300]
        outcome, text = "error", f"the program ended with code {ending.code}{': ' if words else ''}{words}"
        if words.startswith("MemoryError"):
            outcome = "memory"
        elif words.startswith("PermissionError"):
            outcome = "forbidden"
        return outcome, text
    return outcome, text.format(limits=limits)
