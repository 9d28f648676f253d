"""Nodes: the machines of a cluster as plain data, in the one order that everything else goes by."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ascent.errors import InputError

# what Ray counts the devices of a kind as
RESOURCES = {"npu": "NPU", "cuda": "GPU"}
_CORES_A_DEVICE = 16  # of nodes by hand that don't say
_FIRST_BY_HAND = ipaddress.ip_address("10.0.0.1")
_MOST = 10_000  # nodes by hand


@dataclass(frozen=True, slots=True)
class Node:
    """One machine, or one of Ray's nodes. `id` is Ray's (hex), "this" without Ray; `address` its IP; `cpus` its cores;
    `devices` how many of `kind` it has ("npu", "cuda"; 0 where that is "cpu"); `name` its host name, for people."""

    id: str
    address: str
    cpus: int
    devices: int
    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.address} ({self.name})" if self.name and self.name != self.address else self.address

    def count(self, kind: str) -> int:
        """How many processes that compute on `kind` it has room for: one a device, or one a core."""
        if kind == "cpu":
            return self.cpus
        return self.devices if self.kind == kind else 0

    @property
    def has(self) -> str:
        """What it has, in words."""
        return f"{self.cpus} cores" if not self.devices else f"{self.devices} {self.kind}, {self.cpus} cores"


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """The nodes by address as numbers (10.0.0.9 before 10.0.0.10); those of one address by name, then id.

    Raises InputError for an address that isn't one, and for a node that is listed twice.
    """
    listed = sorted(nodes, key=_place)
    twice = [id_ for id_, times in Counter(node.id for node in listed).items() if times > 1]
    if twice:
        raise InputError(f"node {twice[0]} is listed {Counter(node.id for node in listed)[twice[0]]} times")
    return listed


def _place(node: Node) -> tuple[int, int, str, str]:
    try:
        address = ipaddress.ip_address(node.address)
    except ValueError as error:
        raise InputError(f"node {node.id}: its address {node.address!r} is no IP address") from error
    return address.version, int(address), node.name, node.id


def by_hand(groups: Sequence[str]) -> list[Node]:
    """Nodes as they are written: `COUNTxDEVICES:KIND[:CORES]`, such as `4x8:npu` or `2x8:npu:192`; `3x16:cpu` are three
    nodes of 16 cores. Cores that aren't given are taken as 16 a device. Addresses count from 10.0.0.1.

    Raises InputError for anything else.
    """
    made: list[Node] = []
    for group in groups:
        found = re.fullmatch(r"(\d{1,5})x(\d{1,5}):(npu|cuda|cpu)(?::(\d{1,5}))?", group.strip().lower())
        if found is None or not int(found[1]) or not int(found[2]) or (found[3] == "cpu" and found[4]):
            raise InputError(
                f"--nodes {group}: expected COUNTxDEVICES:KIND[:CORES], such as 4x8:npu or 4x8:cuda:128, or "
                "COUNTxCORES:cpu, each at least 1"
            )
        count, each, kind = int(found[1]), int(found[2]), found[3]
        if len(made) + count > _MOST:
            raise InputError(f"--nodes {group}: more than {_MOST} nodes")
        cores = each if kind == "cpu" else int(found[4] or each * _CORES_A_DEVICE)
        for _ in range(count):
            number = len(made)
            address = str(_FIRST_BY_HAND + number)
            made.append(Node(f"node{number + 1}", address, cores, 0 if kind == "cpu" else each, kind))
    return made
