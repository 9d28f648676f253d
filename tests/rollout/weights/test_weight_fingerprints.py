"""Fingerprints: every kind of corruption changes them, nothing else does."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

SHAPES = [(), (1,), (3,), (577,), (64, 64), (301, 1023), (1021 * 32, 2), (1021 * 32 * 2 + 5, 3)]
DTYPES = ["float32", "bfloat16", "float16", "int64", "uint8"]


def made(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    if dtype in ("int64", "uint8"):
        return torch.randint(0, 200, shape, generator=generator).to(getattr(torch, dtype))
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))


def print_of(tensor: Any, name: str = "w") -> str:
    from ascent.rollout.in_vllm.fingerprints import fingerprint

    return fingerprint(name, tensor)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_values_same_fingerprint_wherever_they_lie(shape: tuple[int, ...], dtype: str) -> None:
    import torch

    tensor = made(shape, dtype)
    first = print_of(tensor)
    assert len(first) == 32
    assert print_of(tensor.clone()) == first
    shifted = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(shape)  # begins between two words
    shifted.copy_(tensor)
    assert print_of(shifted) == first
    if tensor.ndim == 2:
        assert print_of(tensor.T.contiguous().T) == first, "memory layout does not count"


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_flipped_bit_changes_it(dtype: str) -> None:
    import torch

    draw = random.Random(dtype)
    for shape in SHAPES:
        tensor = made(shape, dtype).contiguous()
        first = print_of(tensor)
        raw = tensor.reshape(-1).view(torch.uint8)
        places = {0, raw.numel() - 1, *(draw.randrange(raw.numel()) for _ in range(12))}
        for place in places:
            for bit in (0, 7, draw.randrange(8)):
                raw[place] ^= 1 << bit
                assert print_of(raw.view(tensor.dtype).view(shape)) != first, (shape, place, bit)
                raw[place] ^= 1 << bit


def test_name_shape_and_dtype_count() -> None:
    import torch

    tensor = made((64, 32), "float32")
    prints = {
        print_of(tensor),
        print_of(tensor, "v"),
        print_of(tensor.view(32, 64)),
        print_of(tensor.view(torch.int32)),
        print_of(tensor.flatten()),
    }
    assert len(prints) == 5


@pytest.mark.parametrize(("rows", "width"), [(200, 576), (5000, 64), (9000, 65), (70000, 64)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_in_another_place_change_it(rows: int, width: int, dtype: str) -> None:
    """Also rows as far apart as a lane is long."""

    draw = random.Random(rows)
    tensor = made((rows, width), dtype)
    first = print_of(tensor)
    pairs = [draw.sample(range(rows), 2) for _ in range(20)]
    pairs += [[0, distance] for distance in (1, 16, 32, 64, 1021, 2 * 1021, 32 * 1021) if distance < rows]
    for a, b in pairs:
        changed = tensor.clone()
        changed[[a, b]] = tensor[[b, a]]
        assert print_of(changed) != first, (a, b)
    assert print_of(tensor.roll(1, 0)) != first
    assert print_of(tensor.roll(1, 1)) != first
    assert print_of(tensor.flip(0)) != first


def test_faults_that_keep_the_sum_change_it() -> None:
    tensor = made((400, 400), "int64")
    first = print_of(tensor)
    draw = random.Random(0)
    for _ in range(50):
        changed = tensor.clone().view(-1)
        a, b = draw.sample(range(changed.numel()), 2)
        changed[a] += 1
        changed[b] -= 1
        assert print_of(changed.view(400, 400)) != first


def test_an_old_version_nan_and_zeros_change_it() -> None:
    import torch

    tensor = made((300, 300), "bfloat16")
    first = print_of(tensor)
    changed = tensor.clone()
    changed[17, 3] = float("nan")
    assert print_of(changed) != first
    assert print_of(torch.zeros_like(tensor)) != first
    assert print_of(made((300, 300), "bfloat16", seed=1)) != first


def test_minus_zero_is_another_value() -> None:
    import torch

    assert print_of(torch.zeros(20000)) != print_of(-torch.zeros(20000))


@pytest.mark.parametrize("dtype", DTYPES)
def test_host_and_device_compute_the_same(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's way on the host, torch's on devices."""
    from ascent.rollout.in_vllm import fingerprints

    tensors = [made(shape, dtype) for shape in SHAPES]
    first = [print_of(tensor) for tensor in tensors]
    with monkeypatch.context() as patch:
        patch.setattr(fingerprints, "_on_host", lambda words: False)
        assert [print_of(tensor) for tensor in tensors] == first
    assert fingerprints.exact_on("cpu")
