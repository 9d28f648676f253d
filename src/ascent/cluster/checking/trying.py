"""What the nodes do together when a cluster is checked: reach each other, one all-reduce, one delivery of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ascent.cluster.checking.comparing import named
from ascent.cluster.checking.node_report import NodeReport
from ascent.cluster.checking.probes import Probes
from ascent.cluster.ports import shown
from ascent.environment import Finding, smoke
from ascent.environment.rules import found
from ascent.rollout.weights.transports.filling import DEFAULT_CHUNK_BYTES


def check_neighbours(probes: Probes, ports: range) -> tuple[list[Finding], dict[str, int]]:
    """A906, from every node to the one before and after it in their order; and the ports at which nodes listen."""
    said = probes.listen(ports)
    listening = {label: port for label, port in said.items() if isinstance(port, int)}
    deaf = {label: str(why) for label, why in said.items() if label not in listening}
    wrong = [
        found("A906", "error", f"{label} can't listen at a port of {shown(ports)}", evidence=[why])
        for label, why in deaf.items()
    ]
    labels = list(listening)
    around = list(zip(labels, labels[1:] + labels[:1], strict=True))
    pairs = [pair for one, other in around for pair in ((one, other), (other, one)) if one != other]
    faults = {pair: why for pair, why in probes.reach(list(dict.fromkeys(pairs)), listening).items() if why}
    for (one, other), why in faults.items():
        wrong.append(found("A906", "error", f"{one} doesn't reach {other}", evidence=[why]))
    if wrong:
        return wrong, listening
    if not pairs:
        return [found("A906", "ok", f"{named(labels)} is alone: no neighbours")], listening
    return [found("A906", "ok", f"neighbours reach each other at ports {shown(ports)}")], listening


def check_all_reduce(
    probes: Probes, reports: Sequence[NodeReport], ports: Mapping[str, int], interface: str | None
) -> list[Finding]:
    """A913, of the first two nodes that have what the others have: with devices where there are any."""
    with_devices = [report for report in reports if report.counted]
    able = [report for report in with_devices or list(reports) if report.node in ports]
    if len(able) < 2:
        return [found("A913", "note", "one node alone: no all-reduce over two", mend=())]
    pair = [report.node for report in able[:2]]
    interfaces = {report.node: interface or holder_of(report) for report in able[:2]}
    missing = [node for node, name in interfaces.items() if not name]
    if missing:
        return [found("A913", "note", f"no all-reduce was tried: see A905 of {named(missing)}", mend=())]
    results = probes.run_ranks(pair, ports[pair[0]], interfaces)
    return [_outcome(pair, results)]


def check_delivery(probes: Probes, reports: Sequence[NodeReport]) -> list[Finding]:
    """A914: one chunk of weights from the first node to the second, as the transport `http` brings them."""
    nodes = [report.node for report in reports]
    if len(nodes) < 2:
        return [found("A914", "note", "one node alone: no delivery to another", mend=())]
    pair = nodes[:2]
    came = probes.deliver(*pair)
    if "error" in came:
        return [found("A914", "error", f"{pair[1]} gets no weights from {pair[0]}", evidence=[str(came["error"])])]
    speed = DEFAULT_CHUNK_BYTES / 2**20 / came["seconds"]
    said = (
        f"{named(pair)}: {DEFAULT_CHUNK_BYTES // 2**20} MiB of weights in {came['seconds']:.2f} s ({speed:.0f} MiB/s)"
    )
    return [found("A914", "ok", said)]


def holder_of(report: NodeReport) -> str:
    """The interface that holds a node's address, empty where none does."""
    return next((name for name, addresses in report.interfaces.items() if report.address in addresses), "")


def _outcome(pair: Sequence[str], results: Mapping[str, Mapping[str, object]]) -> Finding:
    outcomes = {str(result["outcome"]) for result in results.values()}
    lines = [line for result in results.values() for line in str(result["output"]).splitlines() if line.strip()]
    stated = [line.removeprefix(smoke.SAID) for line in lines if line.startswith(smoke.SAID)]
    if outcomes == {"passed"}:
        return found("A913", "ok", f"{named(pair)}: {stated[-1] if stated else 'the all-reduce gave the right sum'}")
    if outcomes == {"skipped"}:
        return found("A913", "note", f"{named(pair)}: {stated[-1] if stated else 'nothing to reduce over'}", mend=())
    last = [f"{node}: {_last(str(result['output']))}" for node, result in results.items()]
    if "timeout" in outcomes:
        return found("A913", "error", f"{named(pair)}: the all-reduce gave no answer in time", evidence=last)
    return found("A913", "error", f"{named(pair)}: the all-reduce failed", evidence=last)


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
