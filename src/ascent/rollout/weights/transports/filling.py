"""Weights cut into chunks that lie in memory of this machine: what `shm` and `http` share.

A chunk holds whole tensors and is at most `chunk_bytes` long, or as long as the one tensor that is longer. Memory for
two chunks or a few more is used in turn (one is filled while servers load another), and only while weights are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ascent.rollout.in_vllm.shared_memory import Slot, aligned

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_CHUNK_BYTES = 32 * 2**20


class Memory(Protocol):
    """A piece of memory of `size` bytes in which tensors are put."""

    size: int

    def tensor(self, slot: Slot) -> Tensor:
        """The memory of `slot`, to be written."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


Piece = TypeVar("Piece", bound=Memory)


class FilledChunks(Generic[Piece]):
    """Iterates over filled memory and what lies where in it. Memory is filled anew `count` chunks later."""

    def __init__(
        self,
        walk: Iterator[tuple[str, Tensor]],
        dtype: str,
        chunk_bytes: int,
        observe: Callable[[str, Tensor], None],
        make: Callable[[int], Piece],
        count: int = 2,
    ) -> None:
        """`make` reserves memory of so many bytes; what it raises ends the iteration, before the walk's end."""
        self._walk, self._dtype, self._chunk_bytes = walk, dtype, chunk_bytes
        self._observe, self._make = observe, make
        self._pieces: list[Piece | None] = [None] * count
        self._turn = 0

    def __iter__(self) -> Iterator[tuple[Piece, list[Slot]]]:
        piece: Piece | None = None
        slots: list[Slot] = []
        end = 0
        for name, tensor in self._walk:
            slot = self._slot(name, tensor, aligned(end))
            if piece is not None and slot.offset + slot.nbytes > self._chunk_bytes:
                yield piece, slots
                piece, slots = None, []
            if piece is None:
                slot = self._slot(name, tensor, 0)
                piece = self._next_piece(slot.nbytes)
            memory = piece.tensor(slot)
            memory.copy_(tensor.detach())  # also casts, and fetches from a device
            self._observe(name, memory)
            slots.append(slot)
            end = slot.offset + slot.nbytes
        if piece is not None:
            yield piece, slots

    def close(self) -> None:
        """Give the memory back."""
        for piece in self._pieces:
            if piece is not None:
                piece.close()

    def _slot(self, name: str, tensor: Tensor, offset: int) -> Slot:
        dtype = self._dtype if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        return Slot(name, dtype, tuple(tensor.shape), offset)

    def _next_piece(self, needed: int) -> Piece:
        """The memory that is free now, replaced by a longer piece where a tensor needs it."""
        self._turn = (self._turn + 1) % len(self._pieces)
        piece = self._pieces[self._turn]
        if piece is None or piece.size < needed:
            if piece is not None:
                piece.close()
            piece = self._make(max(self._chunk_bytes, needed))
            self._pieces[self._turn] = piece
        return piece


def described(slots: list[Slot]) -> list[dict[str, Any]]:
    """What lies where, for a server (`in_vllm.shared_memory.parse_slots`)."""
    return [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape), "offset": s.offset} for s in slots]
