"""Who starts second on an accelerator is told: services by services, and a training by the service it uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascent import devices
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings
from ascent.rollout.service import record, running
from ascent.rollout.service.processes import start_ticks
from ascent.rollout.service.record import ServiceRecord
from ascent.rollout.service.settings import ServiceSettings
from ascent.rollout.service.sharing import devices_of_servers, refuse_taken_devices

SETTINGS = ServiceSettings(EngineSettings("/models/tiny", "bfloat16", 64), "npu", devices=(0, 1), replicas=2)
VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for variable in devices.VISIBLE_VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """stands("4,5"): the service `policy` of SETTINGS stands, started where these devices were visible."""

    def make(visible: str | None = None, settings: ServiceSettings = SETTINGS, pid: int | None = None) -> None:
        environment = {} if visible is None else {VARIABLE: visible}
        ticks = start_ticks(os.getpid()) or 0
        served = record.ReplicaRecord("http://127.0.0.1:1", "log", "ready")
        written = ServiceRecord(
            "policy", pid or os.getpid(), ticks, "model", 64, "token", None, settings.to_json(), (served,), "ready"
        )
        record.write(record.claim("policy"), replace(written, devices=settings.physical_devices(environment)))

    return make


@pytest.mark.parametrize(
    ("theirs", "mine", "both"),
    [
        (None, None, "0, 1"),
        ("4,5", None, ""),
        ("4,5", "5,6", "5"),
        ("4,5", "0,1,2,3", ""),
        ("1,0", "7,1", "1"),
    ],
)
def test_a_second_service_does_not_take_the_firsts_devices(
    theirs: str | None, mine: str | None, both: str, stands: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indices count what is visible to each; devices are the same when their places in the driver's list are."""
    stands(theirs)
    if mine is not None:
        monkeypatch.setenv(VARIABLE, mine)
    if not both:
        refuse_taken_devices(SETTINGS)
        return
    with pytest.raises(InputError, match=rf"(?s)policy .* is on npu device {both} already.*--stop policy.*--force"):
        refuse_taken_devices(SETTINGS)


def test_what_is_no_neighbour(stands: Callable[..., None]) -> None:
    stands(pid=2**22 + 1)
    refuse_taken_devices(SETTINGS)  # it died
    stands()
    refuse_taken_devices(replace(SETTINGS, device_kind="cuda"))
    refuse_taken_devices(replace(SETTINGS, device_kind="cpu", devices=()))
    refuse_taken_devices(replace(SETTINGS, devices=(2, 3)))


def test_a_service_on_cpu_takes_no_device(stands: Callable[..., None]) -> None:
    stands(settings=replace(SETTINGS, device_kind="cpu", devices=()))
    refuse_taken_devices(replace(SETTINGS, device_kind="cpu", devices=()))


def test_every_start_of_a_service_asks_unless_told_not_to(
    stands: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stands()

    def claim(name: str) -> Path:
        raise InputError("would start")

    monkeypatch.setattr(record, "claim", claim)
    for share, said in ((False, "device 0, 1 already"), (True, "would start")):
        with (
            pytest.raises(InputError, match=said),
            running.running_service(SETTINGS, name="second", share_devices=share),
        ):
            pass


def test_the_record_keeps_the_devices(stands: Callable[..., None]) -> None:
    stands("4,5")
    found = record.read(record.services_folder() / "policy")
    assert found is not None
    assert found.devices == ("4", "5")


def config(**rollout: Any) -> RunConfig:
    return RunConfig.model_validate({"model": {"path": "m"}, "rollout": {"mode": "server", **rollout}})


def test_a_training_beside_the_service_it_uses(stands: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared ones are those that preflight calls an error: A504."""
    monkeypatch.setattr(devices, "kind", lambda: "npu")
    monkeypatch.setattr(devices, "count", lambda: 4)
    stands()
    assert devices_of_servers(config(server="policy"), 1) == (0,)
    assert devices_of_servers(config(server="policy"), 4) == (0, 1)
    assert devices_of_servers(config(server="http://localhost:1"), 1) == (0,)
    assert devices_of_servers(config(server_devices=[3]), 2) == (3,), "its own servers are where it says"
    monkeypatch.setenv(VARIABLE, "2,1,3")
    assert devices_of_servers(config(server="policy"), 3) == (1,)
    assert devices_of_servers(config(server="policy"), 1) == ()
    monkeypatch.setattr(devices, "kind", lambda: "cpu")
    assert devices_of_servers(config(server="policy"), 3) == ()


def test_a_training_on_the_services_device_is_refused(
    stands: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line: exit code 2, and what to do."""
    from ascent.cli import main

    monkeypatch.setattr(devices, "kind", lambda: "npu")
    monkeypatch.setattr(devices, "count", lambda: 4)
    stands()
    file = tmp_path / "c.yaml"
    file.write_text(f"model: {{path: m}}\ntracking: {{folder: {tmp_path}/runs}}\n")
    assert main(["train", str(file), "rollout.mode=server", "rollout.server=policy"]) == 2
    said = capsys.readouterr().err
    assert "trainer and server share device 0" in said
    assert "--force" in said


def test_the_python_api_tells(
    stands: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp")
    from ascent.training.engines import servers

    monkeypatch.setattr(devices, "kind", lambda: "npu")
    monkeypatch.setattr(devices, "count", lambda: 4)
    monkeypatch.setattr(servers, "_join", lambda *_, **__: None)
    stands()
    servers.connect("policy")
    assert "service policy is on this training's device 0 too" in capsys.readouterr().err
