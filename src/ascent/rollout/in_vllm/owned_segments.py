"""Segments of shared memory that this process makes, fills and removes: the trainer's of the transport `shm`, and those
into which one worker of a host fetches weights for the others.

A segment is a file in /dev/shm. Its owner keeps a lock on it while it lives: a segment without a lock belongs to a
process that died, and is removed by the next one. How it is described and read: `shared_memory.py`.

Loaded inside vLLM's processes: the standard library and torch only.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
from typing import TYPE_CHECKING

from ascent.rollout.in_vllm.shared_memory import FOLDER, PREFIX, SegmentError, Slot, tensor_at

if TYPE_CHECKING:
    from torch import Tensor


class Segment:
    """A segment that this process owns."""

    def __init__(self, size: int) -> None:
        """Create it with `size` bytes, all of them reserved. Raises SegmentError when there is no room."""
        self.name = _random_name()
        try:
            self._file = _locked(self.name, os.O_EXCL)
        except OSError as error:
            raise SegmentError(_no_file(error) or _no_room(size, error)) from error
        try:
            os.posix_fallocate(self._file, 0, size)  # a write into an unreserved page would kill the process
            # all pages at once: taken one by one as they are written, they cost more than the writing
            self._map = mmap.mmap(self._file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            os.unlink(FOLDER / self.name)
            os.close(self._file)
            raise SegmentError(_no_room(size, error)) from error
        self.size = size

    def tensor(self, slot: Slot) -> Tensor:
        """The memory of `slot`, to be written."""
        return tensor_at(self._map, slot)

    def memory(self, size: int) -> memoryview:
        """Its first bytes, to be written."""
        return memoryview(self._map)[:size]

    def publish(self, name: str) -> None:
        """Give it the name by which other processes open it, now that it is filled."""
        os.rename(FOLDER / self.name, FOLDER / name)
        self.name = name

    def withdraw(self) -> None:
        """Take that name away before it is filled anew. Processes that have it mapped keep their mapping."""
        self.publish(_random_name())

    def close(self) -> None:
        """Remove it. Processes that have it mapped keep their mapping."""
        if self._file >= 0:
            (FOLDER / self.name).unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


class Role:
    """What one process of this machine has at a time, such as the fetching of a delivery's weights: a lock on an empty
    file. It is free again when its holder lets go, or dies."""

    def __init__(self, name: str, file: int) -> None:
        self._name, self._file = name, file

    @classmethod
    def take(cls, name: str) -> Role | None:
        """The role of this name, which is a segment's; None where another process has it. Raises SegmentError where
        there can be no such file."""
        try:
            return cls(name, _locked(name))
        except BlockingIOError:
            return None
        except OSError as error:
            raise SegmentError(_no_file(error) or f"no file {FOLDER / name}: {error.strerror}") from error

    def free(self) -> None:
        """Let another process have it. Safe to call twice."""
        if self._file >= 0:
            (FOLDER / self._name).unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


def remove_stale() -> list[str]:
    """Remove this user's segments whose owners died; their names."""
    removed = []
    for path in FOLDER.glob(PREFIX + "*"):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone by now
            continue
        try:
            if os.fstat(file).st_uid == os.geteuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
                removed.append(path.name)
        except BlockingIOError:  # its owner lives
            pass
        finally:
            os.close(file)
    return removed


def _locked(name: str, more: int = 0) -> int:
    """A private file of this name, opened and locked; made where there is none. Raises BlockingIOError where another
    process has it, OSError where it can't be had."""
    path = FOLDER / name
    while True:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | more, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(file).st_ino:
                return file
        except FileNotFoundError:  # `remove_stale` of another process came between: it is made anew
            pass
        except OSError:
            os.close(file)
            raise
        os.close(file)


def _random_name() -> str:
    return PREFIX + secrets.token_hex(16)


def _no_file(error: OSError) -> str:
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    return f"too many open files ({error.strerror}). Raise the limit before the start: ulimit -n 65536"


def _no_room(size: int, error: OSError) -> str:
    room = os.statvfs(FOLDER)
    free = room.f_bavail * room.f_frsize
    return (
        f"no shared memory of {size / 2**20:.0f} MiB ({error.strerror}): /dev/shm has {free / 2**20:.0f} MiB free. "
        "In a container, start it with a larger one (docker run --shm-size=1g), or lower the chunk size"
    )
