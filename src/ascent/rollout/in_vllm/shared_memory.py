"""Shared memory between a trainer and the servers on its machine: what lies where in it, and how a server reads it.

A segment is a file in /dev/shm that only its user can open. The trainer makes, fills and removes it
(`rollout/in_vllm/owned_segments.py`); a server maps it for reading. Nothing in a segment is executed or
unpickled; what lies where is told beside it, in JSON, and is checked against the segment's size before it is read.

Loaded inside vLLM's processes: the standard library and torch only.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path("/dev/shm")
PREFIX = "ascent-weights-"
_NAME = re.compile(re.escape(PREFIX) + r"[0-9a-f]{32}")
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


class OpenedSegment:
    """A segment of another process of this user, read only."""

    def __init__(self, name: str) -> None:
        """Open and map it. Raises SegmentError for a name that isn't a segment's, or one of another user."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SegmentError(f"not the name of a segment: {name!r:.80}")
        try:
            file = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            why = error.strerror
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                why = f"{why}: the trainer must run on this machine, as this user and with the same /dev/shm"
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
        return tensor_at(self._map, slot)


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


def tensor_at(memory: mmap.mmap, slot: Slot) -> Tensor:
    """The memory of one slot as a tensor, without a copy."""
    import torch

    count = math.prod(slot.shape)
    dtype = getattr(torch, slot.dtype)
    if count == 0:
        return torch.empty(slot.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=slot.offset).view(slot.shape)


def _itemsize(dtype: str) -> int:
    return {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2}.get(dtype, 1)
