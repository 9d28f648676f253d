"""Each rule on an environment that breaks it, and on one that doesn't."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ascent.environment import checks, rules
from ascent.environment.checks import Purpose
from ascent.environment.inventory import CannPart, Device, Environment, Host, NpuSmi, Package

GIB = 2**30


def device(index: int, **changes: Any) -> Device:
    return replace(Device(index, index, 0, "910B3", "OK", None, "0000:C1:00.0", 0, 3400, 65536, "HBM"), **changes)


def good() -> Environment:
    """A machine on the current row with nothing to complain about."""
    versions = {
        "torch": "2.10.0",
        "torch-npu": "2.10.0.post4",
        "vllm": "0.23.0",
        "vllm-ascend": "0.23.0.post1",
        "triton-ascend": "3.2.2",
        "trl": "1.16.0",
        "transformers": "5.5.4",
        "accelerate": "1.15.0",
        "numpy": "1.26.4",
        "torchvision": "0.25.0",
        **dict.fromkeys(
            ("attrs", "decorator", "sympy", "cffi", "pyyaml", "psutil", "protobuf", "scipy", "absl-py"), "1.0"
        ),
    }
    nodes = ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc")
    return Environment(
        origin="machine",
        host=Host(
            system="Linux",
            os_name="Ubuntu 22.04",
            kernel="5.10",
            architecture="aarch64",
            python="3.11.9",
            container=True,
            memory_total=512 * GIB,
            memory_available=400 * GIB,
            shared_memory=64 * GIB,
            disk_free={"/": 500 * GIB},
            open_files=65536,
            compiler="g++",
            hostname_address="10.0.0.1",
            interfaces=("lo", "eth0"),
            device_addresses=2,
            device_nodes=nodes,
        ),
        packages={name: Package(name, version) for name, version in versions.items()},
        cann=(
            CannPart("toolkit", "9.1.0", "/usr/local/Ascend/cann-9.1.0", True),
            CannPart("kernels", "9.1.0", chip="910b"),
            CannPart("nnal", "9.1.0", "/usr/local/Ascend/nnal/atb/latest", True),
        ),
        npu=NpuSmi("read", "25.5.1", (device(0), device(1))),
        variables={"VLLM_ASCEND_ENABLE_NZ": "0"},
        build_target="A2",
    )


def packages(environment: Environment, **changes: str | None) -> Environment:
    merged = dict(environment.packages)
    for name, version in changes.items():
        key = name.replace("_", "-")
        merged.pop(key, None)
        if version is not None:
            merged[key] = Package(key, version)
    return replace(environment, packages=merged)


def host(environment: Environment, **changes: Any) -> Environment:
    return replace(environment, host=replace(environment.host, **changes))


def variables(environment: Environment, **changes: str) -> Environment:
    return replace(environment, variables={**environment.variables, **changes})


def with_devices(*devices: Device, **changes: Any) -> Environment:
    return replace(good(), npu=replace(good().npu, devices=devices, **changes))


def levels(environment: Environment, purpose: Purpose | None = None) -> dict[str, str]:
    """Rule -> its worst level."""
    worst: dict[str, str] = {}
    for finding in reversed(checks.run(environment, purpose)):
        worst[finding.rule] = finding.level
    return worst


def test_good_machine_has_nothing_to_mend() -> None:
    found = checks.run(good())
    assert [finding for finding in found if finding.level != "ok"] == []
    assert len(found) > 15


def test_every_finding_has_a_rule_that_knows_its_level() -> None:
    known = rules.load()
    for case in BROKEN:
        for finding in checks.run(case[1], case[2] if len(case) > 3 else None):
            assert finding.level in known[finding.rule].levels, (finding.rule, finding.level)


NO_SLEEP = Purpose(sleep_mode=False)
BROKEN: list[tuple[Any, ...]] = [
    ("A101", host(good(), python="3.9.2"), "error"),
    ("A102", host(good(), system="Darwin"), "note"),
    ("A103", host(good(), shared_memory=64 * 2**20), "warning"),
    ("A104", host(good(), open_files=1024), "warning"),
    ("A214", packages(good(), torch_npu="2.10.0.post4+software"), "note"),
    ("A105", host(good(), disk_free={"/": GIB}), "error"),
    ("A106", host(good(), memory_available=8 * GIB), "warning"),
    ("A108", host(good(), hostname_address=""), "note"),
    ("A109", host(good(), device_addresses=None), "note"),
    ("A210", host(good(), missing_mounts=("/usr/local/dcmi",)), "warning"),
    ("A201", replace(host(good(), device_nodes=()), npu=NpuSmi("missing")), "error"),
    ("A202", replace(good(), npu=NpuSmi("missing")), "error"),
    (
        "A202",
        replace(good(), npu=NpuSmi("failed", error="dcmi module initialize failed. ret is -8005")),
        "error",
    ),
    ("A203", with_devices(device(0), device(1, health="Alarm")), "error"),
    ("A203", with_devices(device(0), device(1, health="Warning")), "warning"),
    ("A204", with_devices(device(0, memory_used_mb=40000), device(1)), "warning"),
    ("A205", with_devices(device(0, name="910ProB")), "error"),
    ("A205", with_devices(device(0, name="310P3")), "error"),
    ("A205", with_devices(device(0, name="999X")), "warning"),
    ("A206", with_devices(device(0, name="910A")), "error"),
    ("A207", with_devices(device(0), device(1, npu=3)), "warning"),
    ("A208", good(), Purpose(need_free_bytes=63 * GIB), "error"),
    ("A209", host(good(), device_nodes=("davinci0", "davinci_manager")), "error"),
    ("A209", host(good(), device_nodes=("davinci_manager", "devmm_svm", "hisi_hdc")), "error"),
    ("A209", host(good(), unreadable_nodes=("davinci0",)), "error"),
    ("A211", replace(good(), npu=replace(good().npu, driver="24.1.0")), "note"),
    ("A213", replace(good(), build_target="A3"), "error"),
    ("A301", replace(good(), cann=()), "error"),
    ("A302", replace(good(), cann=(CannPart("toolkit", "9.1.0", "/x", False), *good().cann[1:])), "error"),
    ("A303", replace(good(), cann=good().cann[:2]), "error"),
    ("A304", replace(good(), cann=(*good().cann[:2], CannPart("nnal", "9.1.0", "/n", False))), "error"),
    (
        "A305",
        replace(good(), cann=(good().cann[0], CannPart("kernels", "9.1.0", chip="310p"), good().cann[2])),
        "error",
    ),
    (
        "A305",
        replace(good(), cann=(good().cann[0], CannPart("kernels", "8.5.0", chip="910b"), good().cann[2])),
        "error",
    ),
    ("A306", replace(good(), cann=(*good().cann, CannPart("toolkit", "8.5.0", "/y", False))), "note"),
    ("A307", replace(good(), cann=(*good().cann[:2], CannPart("nnal", "8.5.0", "/n", True))), "error"),
    ("A308", packages(good(), decorator=None), "warning"),
    (
        "A309",
        variables(good(), LD_LIBRARY_PATH="/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_0/lib:/lib"),
        "warning",
    ),
    ("A401", packages(good(), torch="2.9.0", torch_npu="2.9.0"), "error"),
    ("A402", packages(good(), vllm_ascend="0.21.5"), "warning"),
    ("A403", packages(good(), vllm_ascend="0.25.1rc1"), "note"),
    ("A404", packages(good(), torch="2.11.0"), "error"),
    ("A405", packages(good(), vllm_ascend=None), "error"),
    (
        "A406",
        packages(replace(good(), cann=(CannPart("toolkit", "8.2.RC1", "/x", True),)), numpy="2.1.0"),
        "error",
    ),
    ("A407", packages(good(), triton="3.4.0"), "error"),
    ("A407", packages(good(), triton="3.4.0", triton_ascend=None), "warning"),
    ("A408", packages(good(), trl="1.6.0"), "error"),
    ("A409", packages(good(), trl="0.18.1", vllm_ascend="0.7.3"), "error"),
    ("A410", packages(good(), trl="0.26.2", vllm_ascend="0.11.0"), "warning"),
    ("A411", packages(good(), trl="1.9.0"), "note"),
    ("A411", packages(good(), trl="1.9.0"), Purpose(sleep_mode=True), "error"),
    ("A412", packages(good(), transformers="5.3.0", vllm="0.17.0"), "error"),
    (
        "A413",
        packages(replace(good(), cann=(CannPart("toolkit", "7.0.RC1"),)), vllm_ascend=None, torch_npu="2.1.0"),
        "error",
    ),
    ("A414", replace(good(), torch_cuda="13.0"), "error"),
    ("A416", packages(good(), torchvision="0.26.0"), "warning"),
    ("A417", packages(good(), accelerate=None), "note"),
    ("A421", host(good(), shadowing=("vllm",)), "warning"),
    ("A422", replace(good(), remarks=("torch is installed twice: 2.9.0 and 2.10.0",)), "warning"),
    ("A501", variables(good(), PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"), "warning"),
    (
        "A501",
        variables(good(), PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"),
        Purpose(sleep_mode=True),
        "error",
    ),
    ("A502", variables(good(), VLLM_ASCEND_ENABLE_NZ="1"), "warning"),
    ("A502", variables(good(), VLLM_ASCEND_ENABLE_NZ="1"), Purpose(weight_updates=True), "error"),
    ("A503", variables(good(), ASCEND_RT_VISIBLE_DEVICES="0,2"), "error"),
    ("A503", variables(good(), ASCEND_RT_VISIBLE_DEVICES=""), "error"),
    ("A503", variables(good(), ASCEND_RT_VISIBLE_DEVICES="1,1"), "error"),
    # a container that was given one card, where npu-smi doesn't answer: the file is davinci3, its index is 0
    (
        "A503",
        variables(
            host(replace(good(), npu=NpuSmi("missing")), device_nodes=("davinci3", "davinci_manager")),
            ASCEND_RT_VISIBLE_DEVICES="3",
        ),
        "error",
    ),
    ("A504", good(), Purpose(trainer_devices=(0, 1), server_devices=(1,)), "error"),
    ("A505", variables(good(), ASCEND_LAUNCH_BLOCKING="1"), "warning"),
    ("A506", variables(good(), HCCL_CONNECT_TIMEOUT="30"), "warning"),
    ("A507", variables(good(), http_proxy="http://proxy:3128"), "warning"),
    ("A508", variables(good(), TASK_QUEUE_ENABLE="2"), "warning"),
    ("A509", variables(good(), TORCH_DEVICE_BACKEND_AUTOLOAD="0"), "note"),
    ("A510", variables(good(), VLLM_PLUGINS="ascend,mine"), "error"),
    (
        "A510",
        variables(good(), VLLM_PLUGINS="ascend,ascend_kv_connector"),
        Purpose(server_mode=True),
        "error",
    ),
    ("A511", variables(good(), VLLM_WORKER_MULTIPROC_METHOD="fork"), "error"),
    ("A512", variables(good(), HCCL_SOCKET_IFNAME="bond9"), "error"),
    ("A513", variables(good(), INF_NAN_MODE_ENABLE="0"), "warning"),
    ("A515", variables(good(), NPU_ARCH="ascend910b"), "note"),
]


@pytest.mark.parametrize("case", BROKEN, ids=[f"{case[0]}-{case[-1]}" for case in BROKEN])
def test_broken(case: tuple[Any, ...]) -> None:
    number, environment, *purpose, level = case
    assert levels(environment, purpose[0] if purpose else None).get(number) == level


def test_rules_of_the_machine_are_all_tried_here() -> None:
    tried = {case[0] for case in BROKEN}
    wanted = {number for number in rules.load() if number[:2] in ("A1", "A2", "A3", "A4", "A5")}
    assert wanted - tried == {"A107"}  # looks for programs of the machine that it runs on


@pytest.mark.parametrize(
    ("environment", "purpose", "number"),
    [
        (variables(good(), PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"), NO_SLEEP, "A501"),
        (variables(good(), ASCEND_LAUNCH_BLOCKING="1"), Purpose(graph_mode=False), "A505"),
        (variables(good(), http_proxy="http://p:1", no_proxy="localhost,10.0.0.1"), None, "A507"),
        (variables(good(), HCCL_SOCKET_IFNAME="eth"), None, "A512"),
        (packages(good(), trl="1.9.0"), NO_SLEEP, "A411"),
        (good(), Purpose(trainer_devices=(0,), server_devices=(1,)), "A504"),
    ],
)
def test_right_for_this_use(environment: Environment, purpose: Purpose | None, number: str) -> None:
    assert levels(environment, purpose).get(number, "ok") == "ok"


def test_mends_are_specific() -> None:
    found = {finding.rule: finding for finding in checks.run(packages(good(), torch="2.9.0", torch_npu="2.9.0"))}
    assert any('"torch==2.10.0" "torch-npu==2.10.0.post4"' in step for step in found["A401"].mend)


def test_visible_devices_limit_what_must_be_free() -> None:
    environment = with_devices(device(0, memory_used_mb=60000), device(1))
    need = Purpose(need_free_bytes=32 * GIB)
    assert levels(environment, need)["A208"] == "error"
    assert levels(variables(environment, ASCEND_RT_VISIBLE_DEVICES="1"), need)["A208"] == "ok"


def test_group_that_owns_the_device_files_is_named() -> None:
    environment = host(good(), unreadable_nodes=("davinci0",), node_group="HwHiAiUser", groups=("users",))
    (finding,) = [each for each in checks.run(environment) if each.rule == "A209" and each.level == "error"]
    assert "usermod -aG HwHiAiUser" in finding.mend[0]


def test_cuda_machine() -> None:
    idle, busy = "NVIDIA H200, 143771 MiB, 4 MiB, 570.1", "NVIDIA H200, 143771 MiB, 90000 MiB, 570.1"
    environment = Environment(origin="machine", host=Host(python="3.11.9"), gpus=(idle, busy))
    assert environment.accelerator == "cuda"
    assert levels(environment)["A201"] == "ok"
    assert levels(environment)["A204"] == "warning"
    assert levels(environment, Purpose(need_free_bytes=100 * GIB))["A208"] == "error"
    assert levels(environment, Purpose(need_free_bytes=40 * GIB))["A208"] == "ok"
