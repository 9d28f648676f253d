"""What is placed and where, as plain data: what is wanted, the place of each part, and the whole layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ascent.cluster.nodes import RESOURCES, Node


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be placed. `nodes`: that train (None: as few as hold the ranks); `min_nodes`: a run that lost some may
    go on with so few (None: with no fewer). `judge_cpus`: cores of each node that judges (None: half of what is left).
    `accumulation`: the number by which passes of a rank can be dealt out to fewer ranks. `kind`: what it computes on
    (None: the nodes' accelerators where they have any)."""

    ranks: int
    nodes: int | None = None
    min_nodes: int | None = None
    replicas: int = 0
    tensor_parallel: int = 1
    judges: bool = True
    judge_cpus: int | None = None
    accumulation: int = 1
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """The ranks `first_rank` to `first_rank + ranks - 1`. `devices`: one a rank, numbered from 0 among those that the
    run holds on this node (() on cpu). `cpus`: cores for all of them."""

    node: Node
    ranks: int
    first_rank: int
    devices: tuple[int, ...]
    cpus: int

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray is asked for: one bundle a training node."""
        return _bundle(self.node, self.devices, self.cpus)


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """One server, number `number` of all, of `tensor_parallel` processes, with devices and cores as a TrainingPlace."""

    node: Node
    number: int
    tensor_parallel: int
    devices: tuple[int, ...]
    cpus: int

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray is asked for: one group a replica."""
        return _bundle(self.node, self.devices, self.cpus)


@dataclass(frozen=True, slots=True)
class JudgePlace:
    """A sandbox that may use so many cores."""

    node: Node
    cpus: int

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray is asked for."""
        return _bundle(self.node, (), self.cpus)


@dataclass(frozen=True, slots=True)
class Layout:
    """The whole plan, nodes in order. `spare`: nodes that could take the place of one that trains. `kind`: what ranks
    and replicas compute on."""

    training: tuple[TrainingPlace, ...]
    replicas: tuple[ReplicaPlace, ...]
    judges: tuple[JudgePlace, ...]
    spare: tuple[Node, ...]
    kind: str

    @property
    def ranks(self) -> int:
        """All that train."""
        return sum(place.ranks for place in self.training)

    def processes(self, node: Node) -> int:
        """Ranks on a node, and devices of its replicas (on cpu: their processes)."""
        ranks = sum(place.ranks for place in self.training if place.node.id == node.id)
        return ranks + sum(place.tensor_parallel for place in self.replicas if place.node.id == node.id)


def _bundle(node: Node, devices: Sequence[int], cpus: int) -> dict[str, float]:
    return {"CPU": float(cpus)} | ({RESOURCES[node.kind]: float(len(devices))} if devices else {})
