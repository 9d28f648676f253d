"""A short digest of every bit of a tensor, at about the speed of reading it.

Trainer and server compute it separately and compare. The bytes are read as 32-bit words and summed, wrapping around,
into lanes: word `p` of a block of `_ROWS * _LANES` words goes to lane `p % _LANES`. Any flipped bit changes its lane.
`_LANES` is prime, so a row of the tensor that is put in another row's place meets other lanes (for rows of at least
`_ROWS` words). The lanes, a thirty-second of the data, are folded once more with a different odd factor for each, so
that their order counts, and BLAKE2b takes the rest together with name, dtype and shape. This finds faults; it is no
defence against someone who forges weights.

Loaded inside vLLM's processes: the standard library, NumPy and torch only.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_LANES = 1021  # prime; a row of lanes stays in the first-level cache
_ROWS = 32
_FOLD = 64
_SMALL = 1 << 16  # bytes: below this the tensor itself is hashed


def fingerprint(name: str, tensor: Tensor) -> str:
    """32 hexadecimal digits for `name`, dtype, shape and every byte of `tensor` (any device, any layout)."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    digest = hashlib.blake2b(f"{name}|{str(tensor.dtype).removeprefix('torch.')}|{list(tensor.shape)}|".encode())
    size = flat.numel() * flat.element_size()
    if size < _SMALL:
        digest.update(_bytes(flat))
        return digest.hexdigest()[:32]
    per_word = max(1, 4 // flat.element_size())
    if flat.storage_offset() % per_word:
        flat = flat.clone()  # words must begin on a word's boundary
    whole = flat.numel() // per_word * per_word
    words = flat[:whole].view(torch.int32)
    digest.update(_digested(words))
    digest.update(_bytes(flat[whole:]))
    return digest.hexdigest()[:32]


def _digested(words: Tensor) -> bytes:
    """The lanes of `words` (32 bits each), folded as the head of this module says, as bytes."""
    if _on_host(words):
        return _digested_on_host(words)
    import torch

    blocks, groups = _counts(words.numel())
    lanes = words[: blocks * _ROWS * _LANES].view(blocks, _ROWS, _LANES).sum(1, dtype=torch.int32).view(-1)
    factors = torch.arange(1, 2 * _FOLD, 2, dtype=torch.int32, device=words.device)
    folded = (lanes[: groups * _FOLD].view(groups, _FOLD) * factors).sum(1, dtype=torch.int32)
    return _bytes(torch.cat([folded, lanes[groups * _FOLD :], words[blocks * _ROWS * _LANES :]]))


def _digested_on_host(words: Tensor) -> bytes:
    """The same as `_digested`, with NumPy: it uses one thread, and never waits for others as torch's threads would on a
    machine that is busy sampling."""
    import numpy as np

    blocks, groups = _counts(words.numel())
    array = words.numpy()
    lanes = np.add.reduce(array[: blocks * _ROWS * _LANES].reshape(blocks, _ROWS, _LANES), axis=1, dtype=np.int32)
    lanes = lanes.reshape(-1)
    factors = np.arange(1, 2 * _FOLD, 2, dtype=np.int32)
    folded = np.einsum("gf,f->g", lanes[: groups * _FOLD].reshape(groups, _FOLD), factors)
    return b"".join(part.tobytes() for part in (folded, lanes[groups * _FOLD :], array[blocks * _ROWS * _LANES :]))


def _on_host(words: Tensor) -> bool:
    return words.device.type == "cpu"


def _counts(words: int) -> tuple[int, int]:
    """Whole blocks of words, and whole groups of their lanes."""
    blocks = words // (_ROWS * _LANES)
    return blocks, blocks * _LANES // _FOLD


def _bytes(flat: Tensor) -> bytes:
    import torch

    return flat.view(torch.uint8).cpu().numpy().tobytes()


def exact_on(device: str) -> bool:
    """Whether `device` computes fingerprints as the CPU does: integer sums there must wrap around, not saturate."""
    import torch

    words = torch.arange(1, 3 * _ROWS * _LANES, dtype=torch.int32) * 1_000_003  # the sums overflow many times
    return fingerprint("", words) == fingerprint("", words.to(device))
