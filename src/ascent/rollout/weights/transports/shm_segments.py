"""The trainer's side of shared memory: segments that it creates, fills and removes.

A segment is a file in /dev/shm. Its owner keeps a lock on it while it lives: a segment without a lock belongs to a
process that died, and is removed by the next one. How it is described and read: `rollout/in_vllm/shared_memory.py`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from typing import TYPE_CHECKING

from ascent.host.open_files import no_file_left
from ascent.rollout.in_vllm.shared_memory import FOLDER, PREFIX, SegmentError, Slot, tensor_at

if TYPE_CHECKING:
    from torch import Tensor


class Segment:
    """A segment that this process owns."""

    def __init__(self, size: int) -> None:
        """Create it with `size` bytes, all of them reserved. Raises SegmentError when there is no room."""
        self.name = PREFIX + secrets.token_hex(16)
        self._path = FOLDER / self.name
        try:
            self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise SegmentError(no_file_left(error) or _no_room(size, error)) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._file, 0, size)  # a write into an unreserved page would kill the process
            self._map = mmap.mmap(self._file, size)
        except OSError as error:
            os.unlink(self._path)
            os.close(self._file)
            raise SegmentError(_no_room(size, error)) from error
        self.size = size

    def tensor(self, slot: Slot) -> Tensor:
        """The memory of `slot`, to be written."""
        return tensor_at(self._map, slot)

    def close(self) -> None:
        """Remove it. Processes that have it mapped keep their mapping."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
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


def _no_room(size: int, error: OSError) -> str:
    room = os.statvfs(FOLDER)
    free = room.f_bavail * room.f_frsize
    return (
        f"no shared memory of {size / 2**20:.0f} MiB ({error.strerror}): /dev/shm has {free / 2**20:.0f} MiB free. "
        "In a container, start it with a larger one (docker run --shm-size=1g), or lower the chunk size"
    )
