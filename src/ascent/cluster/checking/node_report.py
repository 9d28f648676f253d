"""What one node tells of itself, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ascent.environment import Finding


@dataclass(frozen=True, slots=True)
class Question:
    """What a node is to look at. `model`: a folder or a hub name (None: no model); `whole_model`: read its weights,
    not only their sizes. `sandbox`: the arguments of a Sandbox (None: it isn't tried)."""

    model: str | None = None
    whole_model: bool = False
    sandbox: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """`versions`: of Python, packages, CANN, the driver and the like. `devices`: how many the driver shows; None where
    it wasn't asked or didn't say. `interfaces`: addresses by name of the interface. `host_addresses`: what the host's
    name stands for. `niceness`: of Ray's processes there. `model`: its digest, empty where none was asked for.
    `sandbox`: the level that it gives. Each `_error` says why there is no answer."""

    node: str  # as people call it
    id: str
    address: str
    counted: int  # devices, by Ray
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]
    devices: int | None
    interfaces: Mapping[str, tuple[str, ...]]
    host_name: str
    host_addresses: tuple[str, ...]
    niceness: int
    model: str = ""
    model_error: str = ""
    sandbox: str = ""
    sandbox_error: str = ""


def dump(report: NodeReport) -> str:
    """A report as JSON text."""
    return json.dumps(asdict(report))


def load(text: str) -> NodeReport:
    """Back from `dump`."""
    given = json.loads(text)
    findings = tuple(_finding(each) for each in given.pop("findings"))
    interfaces = {name: tuple(addresses) for name, addresses in given.pop("interfaces").items()}
    host_addresses = tuple(given.pop("host_addresses"))
    return NodeReport(**given, findings=findings, interfaces=interfaces, host_addresses=host_addresses)


def _finding(given: dict[str, Any]) -> Finding:
    return Finding(**{**given, "mend": tuple(given["mend"]), "evidence": tuple(given["evidence"])})
