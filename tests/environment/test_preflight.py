from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

from ascent.environment.inventory import Device, Environment, Host, NpuSmi
from ascent.environment.preflight import preflight, write_environment

FULL = Environment(
    origin="machine",
    host=Host(system="Linux", architecture="aarch64", python="3.11.9"),
    npu=NpuSmi(
        "read",
        "25.5.1",
        (Device(0, 0, 0, "910B3", "OK", memory_used_mb=60000, memory_total_mb=65536, memory_kind="HBM"),),
    ),
)


def cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def test_this_machine_is_checked_in_under_a_second() -> None:
    """Of CPU time: a busy machine takes longer. Nothing is waited for either, such as an answer over the network."""
    before = cpu_seconds()
    checked = preflight()
    assert cpu_seconds() - before < 1.0
    assert checked.seconds < 10.0
    assert checked.line.startswith("preflight: ")
    assert "\n" not in checked.line


def test_missing_memory_stops_a_run() -> None:
    checked = preflight(FULL, need_free_bytes=32 * 2**30)
    assert "A208" in {finding.rule for finding in checked.errors}
    assert "error" in checked.line


def test_notes_and_warnings_dont_stop_a_run() -> None:
    checked = preflight(replace(FULL, npu=NpuSmi("not stated")))
    assert checked.errors == ()
    assert "can run it" in checked.line


def test_shared_devices_stop_a_run() -> None:
    assert "A504" in {finding.rule for finding in preflight(FULL, trainer_devices=(0,), server_devices=(0,)).errors}


def test_record_is_whole_and_replaces_an_older_one(tmp_path: Path) -> None:
    checked = preflight(FULL)
    for _ in range(2):
        file = write_environment(tmp_path, checked)
    content = json.loads(file.read_text())
    assert file.name == "environment.json"
    assert content["schema"] == "ascent.environment/1"
    assert content["environment"]["npu"]["devices"][0]["name"] == "910B3"
    assert content["environment"]["accelerator"] == "npu"
    assert all(finding["rule"] for finding in content["findings"])
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]
