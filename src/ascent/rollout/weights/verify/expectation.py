"""What the servers' reports must say, computed from the weights as they leave the trainer.

A weight `o` of two rows and three columns, [[1, 2, 3], [4, 5, 6]], goes to a server that packs it:

    it leaves     `observe` keeps its fingerprint; and for the seed of this version, whose signs are +1, -1, +1, also
                  each row times the signs, [2, 5], and a few columns as they are, such as the last one, [3, 6]
    it arrives    the server's worker takes the fingerprint too. If it differs: "arrived with other values"
    it is held    what lies in the model as it was sent is read back and fingerprinted. If that differs: "is held with
                  other values". `o` was packed away, so it can't be read
    it computes   the layer is given the signs, and for each column a vector with a single 1: [0, 0, 1]. It must answer
                  [2, 5] and [3, 6]. If it doesn't: "is not what layer L computes with"

The signs meet every element, so a gross fault anywhere shows in the sums, which are compared within rounding. A column
comes back exactly; which ones are asked for changes with every version. With tensor parallelism a rank answers for its
part: rows are compared where they lie, and sums of layers that are cut by columns are added over the ranks first.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascent.rollout.in_vllm import probe
from ascent.rollout.in_vllm.fingerprints import fingerprint

if TYPE_CHECKING:
    from torch import Tensor

# Largest difference of a probed sum of one row, relative to its size: rounding of the output, and of float32 products
# on accelerators, which may keep 10 bits of each factor.
_TOLERANCE = {"float32": 5e-3, "float16": 4 * 2**-11, "bfloat16": 4 * 2**-8}
_TOLERANCE_FLOAT32_CPU = 1e-4


@dataclass(frozen=True, slots=True)
class Difference:
    """One parameter, or layer, that is not what the trainer sent."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class _Probed:
    sums: Tensor  # (N,) float32: each row times the signs
    columns: Tensor  # (columns, N) in the dtype that was sent
    numbers: list[int]  # of the columns


class Expectation:
    """What a server must report after one update. It is given every tensor as it is sent, in its final dtype."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.nbytes = 0
        self.not_finite: list[str] = []
        self._fingerprints: dict[str, str] = {}
        self._probed: dict[str, _Probed] = {}

    def observe(self, name: str, tensor: Tensor) -> None:
        """Keep what it takes to recognise one tensor: of a matrix, 36 bytes (in float32) for each of its rows."""
        import torch

        self.nbytes += tensor.numel() * tensor.element_size()
        self._fingerprints[name] = fingerprint(name, tensor)
        if not tensor.is_floating_point():
            return
        if tensor.ndim != 2:
            if not bool(torch.isfinite(tensor.sum(dtype=torch.float32))):
                self.not_finite.append(name)
            return
        width = tensor.shape[1]
        sums = (tensor @ probe.signs(self.seed, width).to(tensor.device, tensor.dtype)).float().cpu()
        if not bool(torch.isfinite(sums).all()):
            self.not_finite.append(name)
        numbers = probe.columns(self.seed, width)
        picked = tensor[:, torch.tensor(numbers, device=tensor.device)].T.contiguous().cpu()
        self._probed[name] = _Probed(sums, picked, numbers)

    def differences(self, reports: Sequence[Mapping[str, Any]], device: str) -> list[Difference]:
        """Where the reports of one server's ranks are not as they must be, the most telling first."""
        found: dict[str, Difference] = {}
        for rank, report in enumerate(reports):
            on_rank = f" on rank {rank}" if len(reports) > 1 else ""
            for difference in [*self._arrived(report), *self._held(report)]:
                found.setdefault(difference.name, Difference(difference.name, difference.what + on_rank))
        for difference in self._computed(reports, device):
            found.setdefault(difference.name, difference)
        return list(found.values())

    def unseen(self, reports: Sequence[Mapping[str, Any]]) -> list[str]:
        """Parameters that were seen to arrive, but that no rank could be asked for afterwards."""
        return sorted(set.intersection(*(set(report["unseen"]) for report in reports)))

    def _arrived(self, report: Mapping[str, Any]) -> list[Difference]:
        arrived = report["fingerprints"]
        found = [Difference(name, "did not arrive") for name in self._fingerprints if name not in arrived]
        found += [Difference(name, "was not sent") for name in arrived if name not in self._fingerprints]
        found += [
            Difference(name, "arrived with other values")
            for name, value in self._fingerprints.items()
            if arrived.get(name, value) != value
        ]
        return [*found, *(Difference(name, "arrived twice") for name in report["twice"])]

    def _held(self, report: Mapping[str, Any]) -> list[Difference]:
        found = [
            Difference(name, "is held with other values")
            for name, value in report["read_back"].items()
            if self._fingerprints.get(name, value) != value
        ]
        return [*found, *(Difference(path, "has padding rows that are not zero") for path in report["padding"])]

    def _computed(self, reports: Sequence[Mapping[str, Any]], device: str) -> list[Difference]:
        """Differences between what layers compute and what they should."""
        import torch

        found = []
        partial: dict[tuple[str, str], Tensor] = defaultdict(lambda: torch.zeros(()))
        for report in reports:
            for piece in report["probes"]:
                expected = self._probed.get(piece["name"])
                if expected is None:
                    continue  # reported as not sent
                sums = torch.frombuffer(bytearray(base64.b64decode(piece["signs"])), dtype=torch.float32)
                rows = slice(piece["first_row"], piece["first_row"] + sums.numel())
                if not _columns_agree(piece, expected, rows):
                    found.append(_computed(piece))
                elif piece["partial"]:
                    key = piece["name"], piece["layer"]
                    partial[key] = partial[key] + sums
                elif not _sums_agree(sums, expected.sums[rows], self._tolerance(expected, device)):
                    found.append(_computed(piece))
        for (name, layer), sums in partial.items():
            expected = self._probed[name]
            if not _sums_agree(sums, expected.sums, self._tolerance(expected, device)):
                found.append(_computed({"name": name, "layer": layer}))
        return found

    @staticmethod
    def _tolerance(expected: _Probed, device: str) -> float:
        dtype = str(expected.columns.dtype).removeprefix("torch.")
        return _TOLERANCE_FLOAT32_CPU if dtype == "float32" and device == "cpu" else _TOLERANCE[dtype]


def _computed(piece: Mapping[str, Any]) -> Difference:
    return Difference(piece["name"], f"is not what layer {piece['layer']} computes with")


def _columns_agree(piece: Mapping[str, Any], expected: _Probed, rows: slice) -> bool:
    places = [expected.numbers.index(number) for number in piece["columns"] if number in expected.numbers]
    return probe.columns_digest(expected.columns[places, rows]) == piece["columns_digest"]


def _sums_agree(sums: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether sums are equal within `tolerance`; not finite ones, or another number of them, are not."""
    if sums.shape != expected.shape:
        return False
    scale = expected.abs().clamp(min=float(expected.square().mean().sqrt()))
    return bool(((sums - expected).abs() <= tolerance * scale).all())
