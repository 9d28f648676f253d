"""What speed a setting that nobody tried is expected to have, and how sure that is.

A Gaussian process (Rasmussen and Williams 2006, chapters 2 and 5) over the logarithm of speed relative to the
configured settings. Its kernel is a sum of one term for each setting, which acts by itself, and a product of all, for
how they act together. How much each setting matters is found by maximizing the marginal likelihood over a few
amplitudes under a prior that takes 20 % for usual; so a setting that was seen to change nothing is not tried further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ascent.tuning.space import Point, Value

Floats = NDArray[np.float64]

# amplitudes that are tried, in standard deviations of log speed; and the middle of their log-normal prior
_AMPLITUDES, _USUAL = (0.003, 0.02, 0.07, 0.2, 0.6), 0.2
_TOGETHER, _USUAL_TOGETHER = (0.001, 0.01, 0.03, 0.1), 0.03  # of the product term
_NOISES = (0.1, 0.3, 1.0, 2.0)  # times the errors that were given
_PRIOR_WIDTH = 1.5  # standard deviation of an amplitude's logarithm
_LENGTH = 0.5  # of the kernel, where a setting's values lie between 0 and 1
_SWEEPS = 2


@dataclass(frozen=True, slots=True)
class Observation:
    """The log of a point's speed over the configured one's, with the standard deviation of its error."""

    point: Point
    gain: float
    error: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What the model says of points, in their order: mean and standard deviation (N,) of log speed."""

    mean: Floats
    deviation: Floats

    def improvement(self, best: float) -> Floats:
        """The expected gain over `best` where there is one, else 0 (J. Mockus 1975; Jones et al. 1998, eq. 15)."""
        deviation = np.maximum(self.deviation, 1e-9)
        z = (self.mean - best) / deviation
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        below = np.array([0.5 * (1 + math.erf(each / math.sqrt(2))) for each in z])
        return deviation * density + (self.mean - best) * below

    def at_most(self) -> Floats:
        """The upper end of the one-sided 95 % interval (N,)."""
        return self.mean + 1.645 * self.deviation


def expect(values: Mapping[str, tuple[Value, ...]], seen: Sequence[Observation], asked: Sequence[Point]) -> Expected:
    """The model of what was seen, asked about points. `values` are those of each setting that varies, in order."""
    known_ND, asked_MD = _places(values, [each.point for each in seen]), _places(values, asked)
    gains_N = np.array([each.gain for each in seen])
    noise_N = np.array([each.error**2 for each in seen])
    amplitudes_K, noise_N = _fitted(known_ND, gains_N, noise_N)
    prior = float(np.sum(amplitudes_K**2))
    if not seen:
        return Expected(np.zeros(len(asked)), np.full(len(asked), math.sqrt(prior)))
    chol_NN = np.linalg.cholesky(_kernel(known_ND, known_ND, amplitudes_K) + np.diag(noise_N))
    cross_NM = _kernel(known_ND, asked_MD, amplitudes_K)
    weights_N = np.linalg.solve(chol_NN.T, np.linalg.solve(chol_NN, gains_N))
    explained_NM = np.linalg.solve(chol_NN, cross_NM)
    variance_M = prior - np.sum(explained_NM**2, axis=0)
    return Expected(cross_NM.T @ weights_N, np.sqrt(np.maximum(variance_M, 1e-12)))


def _places(values: Mapping[str, tuple[Value, ...]], points: Sequence[Point]) -> Floats:
    """(points, settings): where a value stands among those of its setting, from 0 to 1."""
    steps = [{value: place / max(1, len(each) - 1) for place, value in enumerate(each)} for each in values.values()]
    rows = [[step[getattr(point, name)] for name, step in zip(values, steps, strict=True)] for point in points]
    return np.array(rows, dtype=np.float64).reshape(len(points), len(values))


def _kernel(one_ND: Floats, other_MD: Floats, amplitudes_K: Floats) -> Floats:
    """(N, M). The last of the K = D + 1 amplitudes is the product's."""
    squares_NMD = (one_ND[:, None, :] - other_MD[None, :, :]) ** 2
    alike_NMD = np.exp(-0.5 * squares_NMD / _LENGTH**2)
    return alike_NMD @ amplitudes_K[:-1] ** 2 + amplitudes_K[-1] ** 2 * np.prod(alike_NMD, axis=2)


def _fitted(known_ND: Floats, gains_N: Floats, noise_N: Floats) -> tuple[Floats, Floats]:
    """(K,): each setting's amplitude and that of the product; (N,): the noise's variances. One after another from the
    usual on."""
    settings = known_ND.shape[1]
    usual_K = np.array([_USUAL] * settings + [_USUAL_TOGETHER])
    if len(known_ND) < 2:
        return usual_K, noise_N
    alike_NND = np.exp(-0.5 * (known_ND[:, None, :] - known_ND[None, :, :]) ** 2 / _LENGTH**2)
    terms_KNN = np.concatenate([np.moveaxis(alike_NND, 2, 0), np.prod(alike_NND, axis=2)[None]])

    def evidence(amplitudes_K: Floats, noise: float) -> float:
        """The log of the marginal likelihood times the prior, but for a constant."""
        chol_NN = np.linalg.cholesky(np.tensordot(amplitudes_K**2, terms_KNN, 1) + np.diag(noise**2 * noise_N))
        scaled_N = np.linalg.solve(chol_NN, gains_N)
        prior = float(np.sum((np.log(np.append(amplitudes_K / usual_K, noise)) / _PRIOR_WIDTH) ** 2))
        return float(-0.5 * scaled_N @ scaled_N - np.sum(np.log(np.diag(chol_NN))) - 0.5 * prior)

    amplitudes_K, noise = usual_K, 1.0
    for _ in range(_SWEEPS):
        for place in range(settings + 1):
            values = _AMPLITUDES if place < settings else _TOGETHER
            tried = [np.where(np.arange(settings + 1) == place, each, amplitudes_K) for each in values]
            amplitudes_K = max(tried, key=lambda each_K: evidence(each_K, noise))
        noise = max(_NOISES, key=lambda each: evidence(amplitudes_K, each))
    return amplitudes_K, noise**2 * noise_N
