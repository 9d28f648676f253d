"""How many threads a process computes with on CPU, for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def computing_threads(threads: int | None) -> Iterator[None]:
    """Inside, torch computes with so many threads; None: with as many as before."""
    import torch

    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
