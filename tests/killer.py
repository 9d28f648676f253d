"""Kills at every change of a file, in this process: an exception that nothing catches, before the change is made.

Files that are written by other languages' libraries are seen when Python opens, renames or deletes them, or not at all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree")


class Killed(BaseException):
    """Ends what is going on, as a kill does."""


class _Hook:
    """An audit hook; it can't be taken away again, so there is one."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.changes_left = 0
        sys.addaudithook(self)

    def __call__(self, event: str, details: tuple[Any, ...]) -> None:
        if self.folder is None or event not in _CHANGES:
            return
        beneath = details[1] if event in {"os.remove", "os.rmdir"} else -1  # as rmtree names files: in an open folder
        if self.folder not in (str(details[0]) if beneath == -1 else os.readlink(f"/proc/self/fd/{beneath}")):
            return
        if event == "open" and not (isinstance(details[1], str) and set(details[1]) & set("wax+")):
            return
        self.changes_left -= 1
        if self.changes_left < 0:
            self.folder = None
            raise Killed(event)


_hook: list[_Hook] = []


def killed_at(folder: Path, changes: int, work: Callable[[], object]) -> bool:
    """Do `work`, but for what comes after so many changes of files in a folder; whether it was cut short."""
    if not _hook:
        _hook.append(_Hook())
    hook = _hook[0]
    hook.changes_left, hook.folder = changes, str(folder)
    try:
        work()
    except Killed:
        return True
    finally:
        hook.folder = None
    return False
