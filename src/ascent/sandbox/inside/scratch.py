"""The one directory that a program may write: emptied after each, and kept small. Its contents are hostile,
so nothing here follows a link or trusts a depth."""

from __future__ import annotations

import os
import stat

_MOST_ENTRIES = 2000
_NO_FOLLOW = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def empty(path: str) -> None:
    """Remove everything in it, down and up again by `..`, so that neither depth nor long paths matter.
    Nobody else is at work in it: all processes of its program are gone."""
    here = os.open(path, _NO_FOLLOW)
    try:
        waiting = [os.listdir(here)]
        entered: list[str] = []
        while True:
            if waiting[-1]:
                name = waiting[-1].pop()
                if not _is_directory(name, here):
                    os.unlink(name, dir_fd=here)
                    continue
                os.chmod(name, 0o700, dir_fd=here)
                here = _move(here, name)
                entered.append(name)
                waiting.append(os.listdir(here))
            elif entered:
                here = _move(here, "..")
                waiting.pop()
                os.rmdir(entered.pop(), dir_fd=here)
            else:
                return
    finally:
        os.close(here)


def _move(here: int, name: str) -> int:
    there = os.open(name, _NO_FOLLOW, dir_fd=here)
    os.close(here)
    return there


def _is_directory(name: str, at: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)


def too_large(path: str, size: int) -> bool:
    """Whether it holds more than `size` bytes or too many entries. Unreadable or vanishing entries count as
    entries."""
    open_ends, entries, used = [path], 0, 0
    while open_ends:
        try:
            with os.scandir(open_ends.pop()) as listing:
                for entry in listing:
                    entries += 1
                    status = entry.stat(follow_symlinks=False)
                    used += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        open_ends.append(entry.path)
                    if entries > _MOST_ENTRIES or used > size:
                        return True
        except OSError:
            entries += 1
    return False


def take_file(path: str, name: str, target: str, most_bytes: int) -> str | None:
    """Move what a compiler made out of the scratch to `target`, executable for all. Returns what is wrong,
    or None."""
    try:
        source = os.open(os.path.join(path, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"the compiler left no program: {error.strerror}"
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            return "the compiler left no ordinary program, or one that is too large"
        partial = f"{target}.{os.getpid()}"
        out = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
        try:
            while data := os.read(source, 1 << 20):
                view = memoryview(data)
                while view:
                    view = view[os.write(out, view) :]
            os.fchmod(out, 0o755)
        finally:
            os.close(out)
        os.rename(partial, target)
    finally:
        os.close(source)
    return None
