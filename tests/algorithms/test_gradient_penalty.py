"""The gradient penalty's rule, against functions whose Hessian is known."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from tests.algorithms.plain_passes import PlainPasses, exact, flat, gradient, penalized
from torch import Tensor, nn

from ascent.algorithms.gpro import GPRO
from ascent.algorithms.gradient_penalty.parameters import moved_parameters
from ascent.algorithms.gradient_penalty.probe import probe
from ascent.algorithms.gradient_penalty.update import PROBE_EVERY, GradientPenalty
from ascent.errors import InputError

pytestmark = pytest.mark.torch
RADII = (1e-4, 1e-2, 1.0, 5.0)


class Quadratic(nn.Module):
    """½ θᵀAθ + bᵀθ of weights in two tensors, float64."""

    a: Tensor
    b: Tensor

    def __init__(self, seed: int = 0, sharpest: float = 0.1) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        root = torch.randn(7, 7, generator=draw, dtype=torch.float64)
        root = root @ root.T
        self.register_buffer("a", root * sharpest / torch.linalg.eigvalsh(root).max())
        self.register_buffer("b", torch.randn(7, generator=draw, dtype=torch.float64))
        self.one = nn.Parameter(torch.randn(4, generator=draw, dtype=torch.float64))
        self.other = nn.Parameter(torch.randn(1, 3, generator=draw, dtype=torch.float64))

    def loss(self) -> Tensor:
        weights = torch.cat([self.one, self.other.flatten()])
        return weights @ self.a @ weights / 2 + self.b @ weights


class Network(nn.Module):
    """A small network with everything that the choice of parameters tells apart."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding = nn.Embedding(11, 8)
            self.norm = nn.LayerNorm(8)
            self.inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
            self.head = nn.Linear(8, 11, bias=False)
            self.ids, self.wanted = torch.randint(11, (64,)), torch.randint(11, (64,))
        self.to(dtype)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def loss(self) -> Tensor:
        hidden = self.inner(self.norm(self.embedding(self.ids)))
        return nn.functional.cross_entropy(self.head(hidden).double(), self.wanted)


@pytest.mark.parametrize("radius", RADII)
def test_on_a_quadratic_every_radius_gives_the_analytic_gradient(radius: float) -> None:
    model = Quadratic()
    g, hessian_g = exact(model, model.loss)
    length = g.norm()

    penalized(
        model,
        PlainPasses(model.loss),
        gradient_penalty_form="norm",
        gradient_penalty_strength=0.8,
        gradient_penalty_radius=radius,
    )
    torch.testing.assert_close(gradient(model), g + 0.8 * radius * hessian_g, rtol=1e-9, atol=0)

    penalized(
        model,
        PlainPasses(model.loss),
        gradient_penalty_form="squared",
        gradient_penalty_strength=0.3,
        gradient_penalty_radius=radius,
    )
    torch.testing.assert_close(gradient(model), g + 0.3 * length * hessian_g, rtol=1e-9, atol=0)

    seen = penalized(model, PlainPasses(model.loss), gradient_penalty_strength=0.6, gradient_penalty_radius=radius)
    torch.testing.assert_close(gradient(model), g + 0.6 * length * hessian_g / hessian_g.norm(), rtol=1e-9, atol=0)
    assert seen["gradient_penalty/share"] == pytest.approx(0.6)
    assert seen["gradient_penalty/norm"] == pytest.approx(float(length))
    assert seen["gradient_penalty/radius"] == pytest.approx(radius)


def test_a_scaled_loss_gives_the_scaled_gradient() -> None:
    usual, scaled = Quadratic(), Quadratic()
    passes = PlainPasses(scaled.loss)
    passes.gradient_scale = 1024.0
    for form, strength in (("norm", 0.8), ("squared", 0.3), ("share", 0.5)):
        settings: dict[str, Any] = {"gradient_penalty_form": form, "gradient_penalty_strength": strength}
        seen = penalized(usual, PlainPasses(usual.loss), gradient_penalty_radius=0.5, **settings)
        also = penalized(scaled, passes, gradient_penalty_radius=0.5, **settings)
        torch.testing.assert_close(gradient(scaled), 1024 * gradient(usual), rtol=1e-9, atol=0)
        for name in ("norm", "radius", "share", "cosine", "ratio"):
            assert also[f"gradient_penalty/{name}"] == pytest.approx(seen[f"gradient_penalty/{name}"])


def error_at(model: Network, radius: float) -> float:
    """Of the penalty's part at a relative radius, against the Hessian's product."""
    model = copy.deepcopy(model)
    reference = copy.deepcopy(model).double()
    expected = exact(reference, reference.loss)[1]
    length = float(flat(model.parameters()).norm())
    penalized(model, PlainPasses(model.loss), gradient_penalty_radius=radius * length)
    with_penalty = gradient(model)
    model.zero_grad()
    model.loss().backward()
    part = with_penalty - gradient(model)
    return float((part / part.norm() - expected / expected.norm()).norm())


def test_in_float64_the_error_falls_with_the_radius() -> None:
    model = Network()
    errors = [error_at(model, radius) for radius in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)]
    for larger, smaller in itertools.pairwise(errors):
        assert smaller < larger / 5
    assert errors[-1] < 1e-4


def test_in_float32_the_error_falls_then_rises_and_the_probe_finds_the_valley() -> None:
    model = Network(torch.float32)
    radii = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    errors = {radius: error_at(model, radius) for radius in radii}
    lowest = min(errors, key=lambda radius: errors[radius])
    assert errors[radii[0]] > 3 * errors[lowest]
    assert errors[radii[-1]] > 3 * errors[lowest]
    trained = list(model.parameters())

    def make(precise: bool) -> None:
        model.loss().backward()

    before = flat(trained)
    found = probe(make, trained, [True] * len(trained), full_precision=True, radii=radii)
    assert found is not None
    assert errors[found.radius] < 0.01
    assert found.cosine > 0.99
    assert found.opposite == pytest.approx(-1, abs=0.01)
    assert torch.equal(flat(trained), before)
    assert all(parameter.grad is None for parameter in trained)


def bf16() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def test_in_bfloat16_the_probe_goes_farther_than_in_float32() -> None:
    radii = {}
    for name, cast in (("float32", None), ("bfloat16", bf16)):
        model = Network(torch.float32)
        seen = penalized(model, PlainPasses(model.loss, cast))
        radii[name] = seen["gradient_penalty/probe/radius"]
        assert seen["gradient_penalty/probe/cosine"] > 0.8
    assert radii["bfloat16"] > radii["float32"]


def test_where_no_radius_will_do_it_is_refused_with_what_to_do() -> None:
    model = Network(torch.float32)
    noise = torch.Generator().manual_seed(0)

    def rounded() -> Tensor:
        loss = model.loss()
        if not passes.is_precise:
            return loss + sum(
                (parameter * torch.randn(parameter.shape, generator=noise)).sum() for parameter in model.parameters()
            )
        return loss

    class Noisy(PlainPasses):
        is_full_precision = False
        is_precise = False

        def __init__(self) -> None:
            super().__init__(rounded)
            self.is_full_precision = False

        def again(self, *, one: bool = False, full_precision: bool = False) -> Any:
            self.is_precise = full_precision
            return super().again()

    passes = Noisy()
    before = flat(model.parameters())
    with pytest.raises(InputError, match="at no distance") as refused:
        penalized(model, passes)
    assert "gradient_penalty_parameters=norms" in str(refused.value)
    assert torch.equal(flat(model.parameters()), before)


def test_the_radius_is_looked_for_again_and_kept_in_between() -> None:
    model = Network(torch.float32)
    passes = PlainPasses(model.loss)
    penalty = GradientPenalty(GPRO().penalty, print)
    searches = []
    for step in range(0, 2 * PROBE_EVERY + 1, PROBE_EVERY // 2):
        model.zero_grad()
        passes.again()
        searches.append("gradient_penalty/probe/cosine" in penalty(model, passes, step))
    assert searches == [True, False, True, False, True]


def test_the_second_gradient_is_bounded_and_counted() -> None:
    model = Quadratic(sharpest=100.0)
    g, hessian_g = exact(model, model.loss)
    second = g + 10 * hessian_g
    assert second.norm() > 2 * g.norm()
    seen = penalized(
        model,
        PlainPasses(model.loss),
        gradient_penalty_form="norm",
        gradient_penalty_strength=1.0,
        gradient_penalty_radius=10.0,
    )
    torch.testing.assert_close(gradient(model), second * 2 * g.norm() / second.norm(), rtol=1e-9, atol=1e-12)
    assert seen["gradient_penalty/bounded"] == 1.0
    assert seen["gradient_penalty/ratio"] == pytest.approx(float(second.norm() / g.norm()))


@pytest.mark.parametrize("fails_after", [0, 1, 3])
def test_a_failure_leaves_weights_and_gradients_as_they_were(fails_after: int) -> None:
    model = Network(torch.float32)

    class Failing(PlainPasses):
        def again(self, *, one: bool = False, full_precision: bool = False) -> Any:
            if self.made > fails_after:
                raise RuntimeError("planted")
            return super().again()

    passes = Failing(model.loss)
    before, bits = flat(model.parameters()), [each.detach().clone() for each in model.parameters()]
    model.loss().backward()
    usual = gradient(model)
    with pytest.raises(RuntimeError, match="planted"):
        penalized(model, passes)
    assert torch.equal(flat(model.parameters()), before)
    assert all(torch.equal(one, other) for one, other in zip(bits, model.parameters(), strict=True))
    if passes.made:
        assert torch.equal(gradient(model), usual)


def test_weights_come_back_bit_by_bit() -> None:
    model = Network(torch.float32)
    with torch.no_grad():
        model.norm.weight[0], model.norm.weight[1] = -0.0, 1e-42  # what adding and taking away again would change
    bits = [each.detach().clone().view(torch.int32) for each in model.parameters()]
    penalized(model, PlainPasses(model.loss), gradient_penalty_radius=3.0)
    assert all(torch.equal(one, each.view(torch.int32)) for one, each in zip(bits, model.parameters(), strict=True))


@pytest.mark.parametrize("planted", [0.0, math.nan, math.inf])
def test_a_first_gradient_of_zero_or_not_finite_has_no_second(planted: float) -> None:
    model = Quadratic()
    passes = PlainPasses(lambda: model.loss() * planted)
    seen = penalized(model, passes, gradient_penalty_radius=0.1)
    assert passes.made == 1
    assert seen["gradient_penalty/skipped"] == 1.0
    assert not gradient(model).any() or not gradient(model).isfinite().all()


def test_a_second_gradient_that_is_not_finite_is_left_out_and_counted() -> None:
    model = Quadratic()
    g, _ = exact(model, model.loss)

    def loss() -> Tensor:
        return model.loss() * (1.0 if passes.made <= 1 else math.nan)

    passes = PlainPasses(loss)
    seen = penalized(model, passes, gradient_penalty_radius=0.1)
    assert seen["gradient_penalty/not_finite"] == 1.0
    assert torch.equal(gradient(model), g)


def test_only_every_so_many_steps_have_a_penalty() -> None:
    model = Quadratic()
    passes = PlainPasses(model.loss)
    settings: dict[str, Any] = {"gradient_penalty_every": 3, "gradient_penalty_radius": 0.1}
    with_penalty = [bool(penalized(model, passes, step=step, **settings)) for step in range(7)]
    assert with_penalty == [True, False, False, True, False, False, True]


def test_which_weights_are_moved() -> None:
    model = Network()
    named = dict(model.named_parameters())

    def names(which: Any) -> set[str]:
        found = moved_parameters(model, which)
        return {name for name, parameter in named.items() if parameter in found}

    assert names("all") == set(named)
    assert names("norms") == {"norm.weight", "norm.bias"}
    assert names("without_embeddings") == set(named) - {"embedding.weight", "head.weight"}
    model.norm.requires_grad_(False)
    with pytest.raises(InputError, match="changes no such weights"):
        penalized(model, PlainPasses(model.loss), gradient_penalty_parameters="norms", gradient_penalty_radius=0.1)


def test_moving_some_weights_penalizes_the_norm_of_their_gradient() -> None:
    model = Network()
    parameters = list(model.parameters())
    first = torch.autograd.grad(model.loss(), parameters, create_graph=True)
    of_norms = [each for each, (name, _) in zip(first, model.named_parameters(), strict=True) if "norm" in name]
    length = torch.stack([each.square().sum() for each in of_norms]).sum().sqrt()
    expected = flat(first) + 0.5 * 1e-5 * flat(torch.autograd.grad(length, parameters))
    penalized(
        model,
        PlainPasses(model.loss),
        gradient_penalty_parameters="norms",
        gradient_penalty_radius=1e-5,
        gradient_penalty_form="norm",
        gradient_penalty_strength=0.5,
    )
    torch.testing.assert_close(gradient(model), expected, rtol=1e-7, atol=1e-12)
