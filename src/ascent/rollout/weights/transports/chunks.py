"""A walk over all weights in lists of bounded size, on the device and in the dtype in which they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Chunk = list[tuple[str, "Tensor"]]


def device_chunks(
    walk: Iterable[tuple[str, Tensor]], dtype: str, device: str, limit: int, observe: Callable[[str, Tensor], None]
) -> Iterator[Chunk]:
    """Chunks of at most `limit` bytes, or of one tensor that is longer; `observe` sees each tensor as it is sent.

    A tensor that is on the device in the dtype already is not copied.
    """
    import torch

    chunk: Chunk = []
    size = 0
    for name, tensor in walk:
        target = getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype
        cast = tensor.detach().to(device, target).contiguous()
        observe(name, cast)
        nbytes = cast.numel() * cast.element_size()
        if chunk and size + nbytes > limit:
            yield chunk
            chunk, size = [], 0
        chunk.append((name, cast))
        size += nbytes
    if chunk:
        yield chunk


def described(chunk: Chunk) -> dict[str, list[object]]:
    """Names, dtypes and shapes in the words of vLLM's update info."""
    return {
        "names": [name for name, _ in chunk],
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in chunk],
        "shapes": [list(tensor.shape) for _, tensor in chunk],
    }
