"""`ascent cluster plan`: where everything of a run would stand, before anything is started."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent import config
from ascent.cluster import nodes, ports
from ascent.cluster.connection import connected
from ascent.cluster.layout import lay_out, smaller, wanted
from ascent.cluster.nodes import Node, in_order
from ascent.cluster.places import Layout, Wanted
from ascent.errors import InputError


@dataclass(frozen=True, slots=True)
class Planned:
    """A layout with what it was made of. `after_loss`: what follows where a training node is lost."""

    nodes: tuple[Node, ...]
    wanted: Wanted
    layout: Layout
    after_loss: str
    notes: tuple[str, ...]

    @property
    def good(self) -> bool:
        """What doesn't fit raises; this fits."""
        return True

    def to_text(self) -> str:
        """For a terminal: a line for each node, or for neighbours that have the same to do."""
        lines = [*(f"note: {note}" for note in self.notes), _summary(self.layout), ""]
        lines += _table([("node", "has", "trains", "serves", "judges"), *self._rows()])
        return "\n".join([*lines, "", f"where a training node is lost: {self.after_loss}"])

    def to_json(self) -> dict[str, Any]:
        """For programs: schema `ascent.cluster-plan/1`. Devices count from 0 among those that the run holds there."""
        made = self.layout
        return {
            "schema": "ascent.cluster-plan/1",
            "kind": made.kind,
            "ranks": made.ranks,
            "training": [
                {"node": each.node.address, "id": each.node.id, "ranks": each.ranks, "first_rank": each.first_rank}
                | {"devices": list(each.devices), "cpus": each.cpus}
                for each in made.training
            ],
            "replicas": [
                {"node": each.node.address, "id": each.node.id, "number": each.number}
                | {"tensor_parallel": each.tensor_parallel, "devices": list(each.devices), "cpus": each.cpus}
                for each in made.replicas
            ],
            "judges": [{"node": each.node.address, "id": each.node.id, "cpus": each.cpus} for each in made.judges],
            "spare": [{"node": node.address, "id": node.id} for node in made.spare],
            "after_loss": self.after_loss,
            "notes": list(self.notes),
        }

    def _rows(self) -> Iterator[tuple[str, ...]]:
        told = {node.id: _Told.of(node, self.layout) for node in self.nodes}
        for _, alike in itertools.groupby(self.nodes, key=lambda node: (node.has, told[node.id].shape)):
            group = list(alike)
            first, last = told[group[0].id], told[group[-1].id]
            name = str(group[0])
            if len(group) > 1:
                name = f"{group[0].address} to {group[-1].address} ({len(group)} nodes)"
            yield name, group[0].has, first.trains(last), first.serves(last), first.judges


@dataclass(frozen=True, slots=True)
class _Told:
    """What one node has to do. `shape`: the same for nodes that are told in one line."""

    ranks: tuple[int, ...]
    replicas: tuple[int, ...]
    devices: tuple[str, str]
    cpus: int
    spare: bool

    @classmethod
    def of(cls, node: Node, made: Layout) -> _Told:
        training = [place for place in made.training if place.node.id == node.id]
        served = [place for place in made.replicas if place.node.id == node.id]
        return cls(
            tuple(itertools.chain(*(range(each.first_rank, each.first_rank + each.ranks) for each in training))),
            tuple(each.number for each in served),
            (
                _on([device for each in training for device in each.devices], made.kind),
                _on([device for each in served for device in each.devices], made.kind),
            ),
            sum(place.cpus for place in made.judges if place.node.id == node.id),
            node.id in {each.id for each in made.spare},
        )

    @property
    def shape(self) -> tuple[object, ...]:
        return len(self.ranks), len(self.replicas), self.devices, self.cpus, self.spare

    def trains(self, last: _Told) -> str:
        if not self.ranks:
            return "spare" if self.spare else "-"
        return f"{_span('rank', self.ranks[0], last.ranks[-1])}{self.devices[0]}"

    def serves(self, last: _Told) -> str:
        return f"{_span('replica', self.replicas[0], last.replicas[-1])}{self.devices[1]}" if self.replicas else "-"

    @property
    def judges(self) -> str:
        return f"{self.cpus} cores" if self.cpus > 1 else "1 core" if self.cpus else "-"


def planned(path: Path, overrides: Sequence[str], ranks: int, groups: Sequence[str]) -> Planned:
    """The plan of a configuration with so many ranks: on the cluster that `cluster.address` names, or on nodes that are
    written by hand (`nodes.by_hand`). Raises InputError for what doesn't fit, with what would."""
    settings, notes = config.load(path, overrides)
    section = settings.cluster
    ports.port_range(section.ports)
    if groups:
        there = nodes.by_hand(groups)
        notes.append("nodes by hand: their addresses are made up")
    elif section.address is not None:
        with connected(section) as cluster:
            there = cluster.free()
            notes += _in_use(cluster.nodes(), there)
    else:
        raise InputError(
            "no nodes to plan for: neither cluster.address nor --nodes is given",
            "Name the cluster (cluster.address=auto, on one of its machines), or write its nodes: --nodes 4x8:npu",
        )
    asked = wanted(settings, ranks)
    made = lay_out(there, asked)
    return Planned(tuple(in_order(there)), asked, made, _after_loss(made, asked, section.wait_minutes), tuple(notes))


def _in_use(whole: Sequence[Node], free: Sequence[Node]) -> list[str]:
    """A sentence about what others have reserved."""
    devices = sum(node.devices for node in whole) - sum(node.devices for node in free)
    cores = sum(node.cpus for node in whole) - sum(node.cpus for node in free)
    if devices <= 0 and cores <= 0:
        return []
    return [f"{devices} devices and {cores} cores of the cluster are in use by others; planned for what is left"]


def _after_loss(made: Layout, asked: Wanted, minutes: float) -> str:
    count = len(made.training)
    fewer = smaller(asked, made)
    steps = []
    if made.spare:
        steps.append(f"its ranks start anew on {made.spare[0]}" + (" or another spare" if len(made.spare) > 1 else ""))
    if fewer:
        sizes = ", ".join(str(each.nodes) for each in fewer)
        steps.append(f"the run goes on with {sizes} of {count} nodes and more passes a rank, the same global batch")
    if not steps:
        steps.append(f"the run waits {minutes:g} minutes for another that has room, then ends with what to type")
    return "; else ".join(steps)


def _summary(made: Layout) -> str:
    parts = []
    if made.ranks:
        parts.append(f"{_many(made.ranks, 'training process', 'es')} on {_many(len(made.training), 'node')}")
    if made.replicas:
        size = made.replicas[0].tensor_parallel
        hosts = len({place.node.id for place in made.replicas})
        each = f" of {size} devices" if size > 1 else ""
        parts.append(f"{_many(len(made.replicas), 'server')}{each} on {_many(hosts, 'node')}")
    if made.judges:
        cores = sum(place.cpus for place in made.judges)
        parts.append(f"{_many(cores, 'core')} that judge on {_many(len(made.judges), 'node')}")
    return ", ".join([*parts, f"{len(made.spare)} spare"])


def _on(devices: Sequence[int], kind: str) -> str:
    return f" on {kind} {_numbers(devices[0], devices[-1])}" if devices else ""


def _span(what: str, first: int, last: int) -> str:
    return f"{what}{'s' if last > first else ''} {_numbers(first, last)}"


def _numbers(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _many(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{plural if count != 1 else ''}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in rows]
