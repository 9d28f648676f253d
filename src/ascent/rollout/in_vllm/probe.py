"""A known input for every linear layer, made alike by trainer and server.

The first row has entries +1 and -1: it meets every column of a weight, so the result tells gross faults anywhere. The
other rows have a single 1 each: their results are columns of the weight, bit for bit, whatever form the engine packed
it into. The columns are drawn anew for each version, spread over the width.

Loaded inside vLLM's processes: the standard library and torch only.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = 8


def signs(seed: str, width: int) -> Tensor:
    """(width,) int8, +1 and -1 by the bits of SHAKE-128 of the seed."""
    import torch

    raw = bytearray(hashlib.shake_128(f"{seed}|{width}".encode()).digest((width + 7) // 8))
    bits = torch.frombuffer(raw, dtype=torch.uint8)[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.reshape(-1)[:width].to(torch.int8) * 2 - 1


def columns(seed: str, width: int) -> list[int]:
    """Ascending columns, one of each stretch of the width; all columns of a narrow weight."""
    count = min(COLUMNS, width)
    drawn = []
    for place in range(count):
        first, end = place * width // count, (place + 1) * width // count
        number = int.from_bytes(hashlib.blake2b(f"{seed}|{width}|{place}".encode(), digest_size=8).digest())
        drawn.append(first + number % (end - first))
    return drawn


def inputs(seed: str, width: int, dtype: str, device: str) -> Tensor:
    """(1 + columns, width): the row of signs, then one row for each column."""
    import torch

    rows = torch.zeros(1 + min(COLUMNS, width), width, dtype=getattr(torch, dtype))
    rows[0] = signs(seed, width)
    for place, column in enumerate(columns(seed, width)):
        rows[1 + place, column] = 1
    return rows.to(device)


def columns_digest(columns: Tensor) -> str:
    """32 hexadecimal digits for the values of columns (columns, rows); +0 and -0 are the same value."""
    import torch

    return hashlib.blake2b((columns + 0).contiguous().view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()
