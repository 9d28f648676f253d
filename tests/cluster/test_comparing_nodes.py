"""What several nodes tell of themselves, compared: each difference is found, and only that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ascent.cluster.checking import node_report
from ascent.cluster.checking.comparing import clocks, compare
from ascent.cluster.checking.node_report import NodeReport
from ascent.environment import Finding

NPU = {
    "Python": "3.11.7",
    "Ascent": "0.1.0, files abc",
    "CANN": "9.1.0",
    "driver": "25.5.0",
    "ray": "2.48.0",
    "torch": "2.10.0",
    "torch-npu": "2.10.0.post4",
    "vllm": "0.23.0",
    "scipy": "1.15.0",
}


def node(number: int, **changes: Any) -> NodeReport:
    good = NodeReport(
        node=f"10.0.0.{number}",
        id=f"{number:032x}",
        address=f"10.0.0.{number}",
        counted=8,
        versions=NPU,
        findings=(),
        devices=8,
        interfaces={"lo": ("127.0.0.1",), "eth0": (f"10.0.0.{number}", "fe80::1"), "down0": ()},
        host_name=f"host{number}",
        host_addresses=(f"10.0.0.{number}",),
        niceness=0,
        model="sha256:0123456789",
        sandbox="namespaced",
    )
    return replace(good, **changes)


def nodes(**changes: Any) -> list[NodeReport]:
    """Three, the last of which is another than the others."""
    return [node(1), node(2), node(3, **changes)]


def wrong(reports: Sequence[NodeReport], **settings: Any) -> list[tuple[str, str, str]]:
    return [(each.rule, each.level, each.what) for each in compare(reports, **settings) if each.level != "ok"]


def test_equal_nodes_are_right() -> None:
    found = compare(nodes())
    assert {each.level for each in found} == {"ok"}
    assert sorted(each.rule for each in found) == ["A902", "A903", "A904", "A905", "A907", "A909", "A910"]
    assert wrong([node(1)]) == []
    assert wrong(nodes(), interface="eth0") == []


@pytest.mark.parametrize(
    ("name", "version", "level"),
    [
        *((name, "0.0.1", "error") for name in ("Ascent", "CANN", "ray", "torch", "torch-npu", "vllm")),
        *((name, "0.0.1", "warning") for name in ("driver", "scipy")),
        ("Python", "3.11.9", "warning"),
        ("Python", "3.12.1", "error"),
    ],
)
def test_one_version_that_differs_is_named_with_its_node(name: str, version: str, level: str) -> None:
    ((rule, found, what),) = wrong(nodes(versions={**NPU, name: version}))
    assert (rule, found) == ("A902", level)
    assert what == f"{name} differs: {NPU[name]} on 10.0.0.1, 10.0.0.2; {version} on 10.0.0.3"


def test_what_one_node_lacks_or_has_alone_differs_too() -> None:
    lacks = {name: version for name, version in NPU.items() if name != "vllm"}
    assert wrong(nodes(versions=lacks)) == [
        ("A902", "error", "vllm differs: 0.23.0 on 10.0.0.1, 10.0.0.2; none on 10.0.0.3")
    ]
    assert wrong(nodes(versions={**NPU, "peft": "0.19.0"})) == [
        ("A902", "error", "peft differs: none on 10.0.0.1, 10.0.0.2; 0.19.0 on 10.0.0.3")
    ]


def test_many_nodes_are_counted() -> None:
    many = [node(number) for number in range(1, 31)]
    many[7] = node(8, versions={**NPU, "torch": "2.9.0"})
    ((_, _, what),) = wrong(many)
    assert what == "torch differs: 2.10.0 on 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4 and 25 more; 2.9.0 on 10.0.0.8"


def test_models() -> None:
    assert wrong(nodes(model="sha256:9876543210")) == [
        ("A903", "error", "the model differs: sha256:0123456789 on 10.0.0.1, 10.0.0.2; sha256:9876543210 on 10.0.0.3")
    ]
    assert wrong(nodes(model="", model_error="no model 'm'")) == [("A903", "error", "10.0.0.3: the model isn't there")]
    nowhere = [replace(each, model="", model_error="no model 'm'") for each in nodes()]
    assert [(rule, level) for rule, level, _ in wrong(nowhere)] == [("A903", "warning")]
    unasked = [replace(each, model="") for each in nodes()]
    assert "A903" not in {each.rule for each in compare(unasked)}


def test_devices_of_ray_and_of_the_driver() -> None:
    assert wrong(nodes(devices=7)) == [
        ("A904", "error", "10.0.0.3: Ray hands out 8 devices, the driver shows 7"),
    ]
    assert wrong(nodes(devices=16)) == [
        ("A904", "warning", "10.0.0.3: the driver shows 16 devices, Ray hands out 8"),
    ]
    assert wrong(nodes(devices=4, counted=4)) == [
        ("A904", "warning", "the number of devices differs: 8 on 10.0.0.1, 10.0.0.2; 4 on 10.0.0.3"),
    ]
    assert wrong(nodes(devices=None, counted=0)) == []  # a node for judging, or the head


@pytest.mark.parametrize(
    ("changes", "interface", "said"),
    [
        ({"address": "172.17.0.9"}, None, "no interface there holds the address 172.17.0.9"),
        ({"address": "127.0.0.1"}, None, "Ray gave it the loopback address 127.0.0.1"),
        ({}, "down0", "interface down0 has no address"),
        ({}, "ib0", "interface ib0 isn't there"),
    ],
)
def test_interfaces(changes: dict[str, str], interface: str | None, said: str) -> None:
    found = wrong(nodes(**changes), interface=interface)
    assert ("A905", "error", f"10.0.0.3: {said}") in found
    assert len(found) == (3 if interface else 1)


def test_nodes_of_one_machine_may_be_at_loopback() -> None:
    alone = [replace(node(n), address="127.0.0.1", host_name="laptop") for n in (1, 2)]
    assert wrong(alone) == []


@pytest.mark.parametrize("addresses", [(), ("127.0.1.1",), ("127.0.0.1", "::1")])
def test_host_names(addresses: tuple[str, ...]) -> None:
    ((rule, level, what),) = wrong(nodes(host_addresses=addresses))
    assert (rule, level) == ("A907", "warning")
    assert what.startswith("10.0.0.3: ")
    assert wrong(nodes(host_addresses=("127.0.1.1", "10.0.0.3"))) == []


def test_niceness_and_sandboxes() -> None:
    assert wrong(nodes(niceness=15)) == [("A909", "warning", "10.0.0.3: Ray's processes run at nice 15")]
    every = [replace(each, niceness=15) for each in nodes()]
    assert wrong(every) == [("A909", "warning", "every node: Ray's processes run at nice 15")]
    assert wrong(nodes(sandbox="", sandbox_error="no Landlock")) == [
        ("A910", "error", "10.0.0.3: programs can't be confined as required")
    ]


def test_what_doctor_says_of_several_nodes_is_said_once() -> None:
    low = Finding("warning", "A104", "at most 1024 open files", "why", ("raise it",), ("seen",))
    some = [node(1, findings=(low,)), node(2), node(3, findings=(low,))]
    (found,) = [each for each in compare(some) if each.level != "ok"]
    assert found == replace(low, what="10.0.0.1, 10.0.0.3: at most 1024 open files")
    assert wrong([replace(each, findings=(low,)) for each in nodes()]) == [
        ("A104", "warning", "every node: at most 1024 open files")
    ]


def test_clocks() -> None:
    assert clocks({"a": (0.5, 0.1), "b": (-1.0, 0.2)})[0].level == "ok"
    assert clocks({"a": (30.0, 29.0)})[0].level == "ok", "an answer that took long says nothing"
    (found,) = clocks({"a": (0.0, 0.1), "b": (-90.0, 0.2), "c": (3.0, 0.1)})
    assert (found.rule, found.level) == ("A908", "warning")
    assert found.evidence == ("b: 90.0 s behind", "c: 3.0 s ahead")


def test_every_finding_but_the_good_ones_has_a_mend() -> None:
    broken = nodes(
        versions={},
        devices=1,
        address="127.0.0.1",
        host_addresses=(),
        niceness=19,
        model="",
        model_error="x",
        sandbox_error="y",
    )
    found = [each for each in compare(broken) if each.level != "ok"]
    assert {each.rule for each in found} == {"A902", "A903", "A904", "A905", "A907", "A909", "A910"}
    assert all(each.mend and each.why for each in found)


def test_a_report_comes_back_as_it_was() -> None:
    report = node(1, findings=(Finding("note", "A103", "what", "why", ("a", "b"), ("c",), False),))
    assert node_report.load(node_report.dump(report)) == report
