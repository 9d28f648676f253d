"""Compiles programs in a slot, behind the same walls as they run, and keeps what comes out."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ascent.sandbox.compilers import Toolchain
from ascent.sandbox.errors import SlotError
from ascent.sandbox.jobs import explain, make_job
from ascent.sandbox.slot import Slot
from ascent.sandbox.types import Limits

_EXCERPT = 2000
_COULD_NOT_BEGIN = 70  # see `inside/supervisor.py`; no compiler ends with it
# A compiler is no hostile program, but what it reads is: large templates and macros end here.
COMPILE_LIMITS = Limits(
    wall_seconds=45.0,
    cpu_seconds=15.0,
    memory_bytes=2 << 30,
    file_bytes=64 << 20,
    processes=64,
    open_files=256,
)


@dataclass(slots=True)
class CompiledProgram:
    """A place in the cache: once `made`, `path` is the program, or `error` says why there is none."""

    path: str
    error: str | None = None
    users: int = 0
    made: bool = False


@dataclass(slots=True)
class CompileCache:
    """Programs by the hash of compiler, flags and source. Only the sandbox's own side writes here: a program
    runs with its one file readable and executable, and a compiler writes into its scratch, from where its
    product is copied."""

    folder: str
    limits: Limits = COMPILE_LIMITS
    most: int = 256
    _entries: OrderedDict[str, CompiledProgram] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def entry(self, toolchain: Toolchain, source: bytes) -> Iterator[CompiledProgram]:
        """The entry of a program, kept while it is in use. Its maker sets `made`, and `error` when it isn't
        valid."""
        text = "\0".join((toolchain.identity, *toolchain.build)).encode() + b"\0" + source
        key = hashlib.sha256(text).hexdigest()
        with self._lock:
            entry = self._entries.setdefault(key, CompiledProgram(os.path.join(self.folder, key)))
            self._entries.move_to_end(key)
            entry.users += 1
        try:
            yield entry
        finally:
            with self._lock:
                entry.users -= 1
                self._evict()

    def _evict(self) -> None:
        idle = [key for key, entry in self._entries.items() if not entry.users]
        for key in idle[: max(0, len(self._entries) - self.most)]:
            Path(self._entries.pop(key).path).unlink(missing_ok=True)


def compile_program(slot: Slot, toolchain: Toolchain, source: bytes, entry: CompiledProgram, limits: Limits) -> None:
    """Fill a cache entry, unless it is filled. Raises SlotError."""
    if not entry.made:
        entry.error = _run_compiler(slot, toolchain, toolchain.build, source, entry.path, limits)
        entry.made = True


def check_program(slot: Slot, toolchain: Toolchain, source: bytes, limits: Limits) -> tuple[bool, str | None]:
    """Whether a program is valid, and the compiler's words when it isn't. Raises SlotError."""
    error = _run_compiler(slot, toolchain, toolchain.check, source, None, limits)
    return error is None, error


def _run_compiler(
    slot: Slot,
    toolchain: Toolchain,
    command: Sequence[str],
    source: bytes,
    target: str | None,
    limits: Limits,
) -> str | None:
    job = {
        **make_job("compile", limits, limits.wall_seconds, limits.cpu_seconds),
        "profile": "compile",
        "stdin_bytes": len(source),
        "command": list(command),
        "executables": list(toolchain.grants),
        "target": target,
        "binary_bytes": limits.file_bytes,
    }
    ending = slot.run(job, [source])
    words = ending.err.decode("utf-8", "replace").strip()[:_EXCERPT]
    if not ending.began or ending.code == _COULD_NOT_BEGIN:
        raise SlotError(f"{command[0]} could not be started: {words}")
    if ending.code is None or ending.reason is not None:
        return f"the compiler was stopped: {explain(ending, limits)[1]}"
    if ending.code != 0:
        if os.strerror(errno.ENOSPC) in words and slot.free_bytes() < limits.file_bytes:
            raise SlotError(f"{command[0]} found no room: {slot.free_bytes() >> 20} MiB are free for the sandbox")
        return words or f"the compiler ended with code {ending.code}"
    return ending.error
