"""Lists of tensors as one vector: gradients and weights, also where each rank has shards of them.

All tensors are float32 on one device. Norms and products are of the whole vector, alike on all ranks, and read by the
host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.device_mesh import DeviceMesh

_Layout = tuple[DeviceMesh, tuple[Placement, ...]]


def locals_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This rank's own parts, which share their memory."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def dot(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """The inner product. `others` are sharded as `ones` are. Collective where they are sharded."""
    sums: dict[_Layout | None, list[Tensor]] = defaultdict(list)
    with torch.no_grad():
        for tensor, one, other in zip(ones, locals_of(ones), locals_of(others), strict=True):
            layout = (tensor.device_mesh, tuple(tensor.placements)) if isinstance(tensor, DTensor) else None
            sums[layout].append(torch.dot(one.flatten(), other.flatten()))
        return sum(float(_of_all_shards(torch.stack(parts).sum(), layout)) for layout, parts in sums.items())


def norm(vector: Sequence[Tensor]) -> float:
    """The Euclidean norm. Collective where the vector is sharded."""
    return float(dot(vector, vector) ** 0.5)


def cosine(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Of the angle between two vectors; 0.0 where one of them is 0."""
    lengths = norm(ones) * norm(others)
    return dot(ones, others) / lengths if lengths else 0.0


def _of_all_shards(part: Tensor, layout: _Layout | None) -> Tensor:
    """A sum over this rank's shards, added up over the ranks that hold other shards of the same tensors."""
    if layout is None:
        return part
    mesh, placements = layout
    held = [Partial() if isinstance(each, Shard) else Replicate() for each in placements]
    return DTensor.from_local(part, mesh, held).full_tensor()
