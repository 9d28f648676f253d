"""Is a PackedForward's result TRL's, in value and gradient?"""

from __future__ import annotations

from typing import Any

import torch
from tests.training.batches.tiny_models import trl_pass

from ascent.training.batches.passes.packed_forward import PackedForward


def _results(function: Any, model: Any, batch: Any, weights_BC: torch.Tensor) -> tuple[Any, Any, dict[str, Any]]:
    model.zero_grad()
    ids_BT, mask_BT, width = batch
    logps_BC, entropies_BC = function(model, ids_BT, mask_BT, width, compute_entropy=True)
    ((logps_BC + 0.1 * entropies_BC) * weights_BC).sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return logps_BC.detach(), entropies_BC.detach(), gradients


def relative(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """How far gradients are from those expected, relative to their size, over all parameters together."""
    assert found.keys() == expected.keys()
    difference = sum(float((found[name] - value).double().square().sum()) for name, value in expected.items())
    size = sum(float(value.double().square().sum()) for value in expected.values())
    return float((difference / size) ** 0.5) if size else difference


def assert_equal_to_trl(packed: PackedForward, model: Any, batch: Any, *, within: float = 1e-5) -> None:
    """Both passes with the same weights on their outputs: values and gradients of all parameters agree."""
    ids_BT, mask_BT, width = batch
    weights_BC = torch.randn(len(ids_BT), width, generator=torch.Generator().manual_seed(1))
    expected = _results(trl_pass, model, batch, weights_BC)
    found = _results(packed.logps, model, batch, weights_BC)
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=within, atol=within)
    assert (found[0][mask_BT[:, -width:] == 0] == 0).all()
    assert relative(found[2], expected[2]) < within
