"""Shared memory between a trainer and the servers on its machine: created, filled, checked, removed.

A segment is a file in /dev/shm that only its owner can open. The owner keeps a lock on it while it lives: a segment
without a lock belongs to a process that died, and is removed by the next one. Nothing in a segment is executed or
unpickled; what lies where is told apart, in JSON, and is checked against the segment's size before it is read.

Loaded inside vLLM's processes: the standard library and torch only.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascent.open_files import no_file_left

if TYPE_CHECKING:
    from torch import Tensor

_FOLDER = Path("/dev/shm")
_PREFIX = "ascent-weights-"
_NAME = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{32}")
_ALIGNMENT = 64  # bytes; wide vector loads
_DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
_LONGEST_NAME = 1024


class SegmentError(ValueError):
    """A segment, or what is said about its content, can't be used."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lies in a segment."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor takes."""
        return math.prod(self.shape) * _itemsize(self.dtype)


def aligned(offset: int) -> int:
    """The next offset at which a tensor may begin."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class Segment:
    """A segment that this process owns."""

    def __init__(self, size: int) -> None:
        """Create it with `size` bytes, all of them reserved. Raises SegmentError when there is no room."""
        self.name = _PREFIX + secrets.token_hex(16)
        self._path = _FOLDER / self.name
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
        return _tensor(self._map, slot)

    def close(self) -> None:
        """Remove it. Processes that have it mapped keep their mapping."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


class OpenedSegment:
    """A segment of another process of this user, read only."""

    def __init__(self, name: str) -> None:
        """Open and map it. Raises SegmentError for a name that isn't a segment's, or one of another user."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SegmentError(f"not the name of a segment: {name!r:.80}")
        try:
            file = os.open(_FOLDER / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            same = "the trainer must run on this machine, as this user and with the same /dev/shm"
            why = no_file_left(error) or f"{error.strerror}: {same}"
            raise SegmentError(f"segment {name} can't be opened: {why}") from error
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise SegmentError(f"segment {name} is not a private file of this user")
            # Copy on write: a loader that changes a tensor in place can't reach the trainer's memory.
            self._map = mmap.mmap(file, found.st_size, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise SegmentError(f"segment {name} can't be mapped: {error}") from error
        finally:
            os.close(file)
        self.name = name
        self.size = len(self._map)

    def tensor(self, slot: Slot) -> Tensor:
        """The values of `slot`; valid until the owner fills the segment anew."""
        return _tensor(self._map, slot)


def parse_slots(described: Any, size: int) -> list[Slot]:
    """What a message says to lie in a segment of `size` bytes. Raises SegmentError unless all of it fits."""
    if not isinstance(described, Sequence) or isinstance(described, (str, bytes)) or not described:
        raise SegmentError("tensors must be a list that is not empty")
    slots = []
    end = 0
    for item in described:
        slot = _parse_slot(item)
        if slot.offset < end or slot.offset % _ALIGNMENT:
            raise SegmentError(f"{slot.name}: offset {slot.offset} overlaps another tensor or is not aligned")
        end = slot.offset + slot.nbytes
        if end > size:
            raise SegmentError(f"{slot.name}: ends at byte {end} of a segment of {size}")
        slots.append(slot)
    if len({slot.name for slot in slots}) != len(slots):
        raise SegmentError("a tensor is named twice")
    return slots


def _parse_slot(item: Any) -> Slot:
    if not isinstance(item, Mapping) or set(item) != {"name", "dtype", "shape", "offset"}:
        raise SegmentError("each tensor needs exactly name, dtype, shape and offset")
    name, dtype, shape, offset = item["name"], item["dtype"], item["shape"], item["offset"]
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise SegmentError("a tensor's name must be text")
    if dtype not in _DTYPES:
        raise SegmentError(f"{name}: unknown dtype {dtype!r:.40}; known: {', '.join(_DTYPES)}")
    if not isinstance(shape, list) or len(shape) > 8 or not all(_is_size(size) for size in shape):
        raise SegmentError(f"{name}: shape must be a list of at most 8 sizes")
    if not _is_size(offset):
        raise SegmentError(f"{name}: offset must be a count of bytes")
    return Slot(name, dtype, tuple(shape), offset)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def remove_stale() -> list[str]:
    """Remove this user's segments whose owners died; their names."""
    removed = []
    for path in _FOLDER.glob(_PREFIX + "*"):
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


def _tensor(memory: mmap.mmap, slot: Slot) -> Tensor:
    import torch

    count = math.prod(slot.shape)
    dtype = getattr(torch, slot.dtype)
    if count == 0:
        return torch.empty(slot.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=slot.offset).view(slot.shape)


def _itemsize(dtype: str) -> int:
    return {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2}.get(dtype, 1)


def _no_room(size: int, error: OSError) -> str:
    room = os.statvfs(_FOLDER)
    free = room.f_bavail * room.f_frsize
    return (
        f"no shared memory of {size / 2**20:.0f} MiB ({error.strerror}): /dev/shm has {free / 2**20:.0f} MiB free. "
        "In a container, start it with a larger one (docker run --shm-size=1g), or lower the chunk size"
    )
