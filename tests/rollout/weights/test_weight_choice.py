"""From a configuration, and where trainer and servers stand, to the transport of weights; no engine is started."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from ascent import tables
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.rollout.weights.transports import choice
from ascent.rollout.weights.transports.base import Place
from ascent.rollout.weights.transports.choice import backend, choose, transport

PICKLED = "VLLM_ALLOW_INSECURE_SERIALIZATION"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that trainer and vLLM are on such devices."""
    monkeypatch.delenv(PICKLED, raising=False)

    def pretend(kind: str, version: str, *, trains_on: str | None = None) -> None:
        from ascent import devices
        from ascent.rollout.service import command
        from ascent.training.engines import servers

        for module in (servers, command):
            monkeypatch.setattr(module, "engine_kind", lambda: kind)
            monkeypatch.setattr(module, "installed_vllm", lambda: version)
        monkeypatch.setattr(devices, "kind", lambda: trains_on or kind)

    return pretend


def chosen(processes: int = 1, **rollout: Any) -> str:
    from ascent.training.engines.servers import own_transport

    settings = {"model": {"path": "m"}, "rollout": {"mode": "server", **rollout}}
    return own_transport(RunConfig.model_validate(settings), processes)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "version", "processes", "rollout", "pickled", "name"),
    [
        ("cpu", "0.31.0", 1, {}, "0", "shm"),
        ("cpu", "0.23.0", 2, {"replicas": 2, "tensor_parallel_size": 2}, "1", "shm"),
        # devices of their own
        ("npu", "0.23.0", 1, {}, "0", "hccl"),
        ("npu", "0.23.0.post1", 4, {"replicas": 2, "tensor_parallel_size": 2}, "1", "hccl"),
        ("npu", "0.23.0", 2, {"server_devices": [2]}, "1", "hccl"),
        ("npu", "0.29.0", 1, {}, "0", "shm"),
        ("cuda", "0.31.0", 1, {}, "0", "nccl"),
        ("cuda", "0.23.0", 8, {"server_devices": [9, 8], "tensor_parallel_size": 2}, "0", "nccl"),
        # a server on a device of the training's
        ("npu", "0.23.0", 1, {"server_devices": [0]}, "0", "shm"),
        ("npu", "0.23.0", 1, {"server_devices": [0]}, "1", "npu_ipc"),
        ("npu", "0.29.0", 1, {"server_devices": [0]}, "1", "shm"),
        ("npu", "0.23.0", 2, {"server_devices": [1]}, "1", "shm"),
        ("npu", "0.23.0", 1, {"server_devices": [0, 1], "tensor_parallel_size": 2}, "1", "shm"),
        ("npu", "0.23.0", 1, {"server_devices": [1, 0], "replicas": 2}, "1", "shm"),
        ("cuda", "0.31.0", 1, {"server_devices": [0]}, "0", "shm"),
        ("cuda", "0.31.0", 1, {"server_devices": [0]}, "1", "ipc"),
        ("cuda", "0.23.0", 1, {"server_devices": [0]}, "1", "ipc"),
        ("cuda", "0.31.0", 2, {"server_devices": [0]}, "1", "shm"),
    ],
)
def test_a_runs_own_servers_get_what_fits(
    machine: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    version: str,
    processes: int,
    rollout: Any,
    pickled: str,
    name: str,
) -> None:
    machine(kind, version)
    monkeypatch.setenv(PICKLED, pickled)
    assert chosen(processes, **rollout) == name


@pytest.mark.torch
def test_a_training_on_cpu_shares_no_device_with_its_servers(machine: Any) -> None:
    machine("npu", "0.23.0", trains_on="cpu")
    assert chosen(server_devices=[0]) == "shm", "nor can it broadcast from an NPU"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "rollout", "processes", "why"),
    [
        ("cpu", {"transport": "hccl"}, 1, "it serves npu, and the servers run on cpu"),
        ("npu", {"transport": "nccl"}, 1, "it serves cuda, and the servers run on npu"),
        ("npu", {"transport": "hccl", "server_devices": [0]}, 1, "a server shares a device with the trainer"),
        ("cuda", {"transport": "ipc"}, 1, "devices of their own"),
        ("cuda", {"transport": "ipc", "server_devices": [0]}, 2, "there are 2 and 1"),
        ("cuda", {"transport": "ipc", "server_devices": [0]}, 1, f"without {PICKLED}=1"),
    ],
)
def test_a_transport_that_is_asked_for_and_does_not_fit_is_refused(
    machine: Any, kind: str, rollout: Any, processes: int, why: str
) -> None:
    machine(kind, "0.23.0")
    with pytest.raises(InputError, match=why):
        chosen(processes, **rollout)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "version", "name"),
    [
        ("npu", "0.23.0", "hccl"),
        ("cuda", "0.31.0", "nccl"),
        ("cpu", "0.31.0", "http"),
        ("cpu", "0.23.0", "http"),
        ("npu", "0.29.0", "http"),  # of which no collective is known
    ],
)
def test_servers_elsewhere_get_a_broadcast_or_fetch_them(machine: Any, kind: str, version: str, name: str) -> None:
    from ascent.config.sections import RolloutSection
    from ascent.training.engines.servers import remote_transport

    machine(kind, version)
    assert remote_transport(RolloutSection(mode="server"), 4) == name
    with pytest.raises(InputError, match="it ends with this machine"):
        remote_transport(RolloutSection(mode="server", transport="shm"), 1)


@pytest.mark.torch
def test_a_trainer_without_the_servers_devices_sends_over_http(machine: Any) -> None:
    from ascent.config.sections import RolloutSection
    from ascent.training.engines.servers import remote_transport

    machine("npu", "0.23.0", trains_on="cpu")
    assert remote_transport(RolloutSection(mode="server"), 1) == "http"


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "version"), [("cpu", "0.31.0"), ("npu", "0.29.0")])
def test_no_way_to_another_machine_is_said(
    machine: Any, kind: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ascent.config.sections import RolloutSection
    from ascent.training.engines.servers import remote_transport

    machine(kind, version)
    monkeypatch.delitem(tables.TRANSPORTS, "http")
    with pytest.raises(InputError, match="can't reach servers on another machine"):
        remote_transport(RolloutSection(mode="server"), 1)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "asked", "host", "name"),
    [
        ("cpu", "auto", "127.0.0.1", "shm"),
        ("npu", "auto", "127.0.0.1", "hccl"),
        ("npu", "auto", "10.0.0.5", "hccl"),
        ("cpu", "auto", "10.0.0.5", "http"),
        ("cpu", "http", "127.0.0.1", "http"),
        ("npu", "http", "10.0.0.5", "http"),
        ("npu", "shm", "10.0.0.5", "shm"),  # a training on this machine may use it
        ("cuda", "auto", "127.0.0.1", "nccl"),
    ],
)
def test_a_standing_service_gets_what_a_training_on_other_devices_can_use(
    machine: Any, kind: str, asked: str, host: str, name: str
) -> None:
    from ascent.rollout.service import command

    machine(kind, "0.23.0")
    given = argparse.Namespace(transport=asked, host=host, replicas=1, tensor_parallel=1)
    assert command._transport(given, kind, same_host=host == "127.0.0.1") == name  # type: ignore[arg-type]


@pytest.mark.torch
def test_a_standing_services_transport_is_taken_and_another_one_is_refused() -> None:
    from ascent.config.sections import RolloutSection
    from ascent.rollout.service.address import ServiceAddress
    from ascent.rollout.weights.transports.shm import ShmTransport
    from ascent.training.engines.servers import _delivery

    address = ServiceAddress("policy", ("http://127.0.0.1:1",), "token", Path(), transport="shm", dtype="float32")
    taken: Any = _delivery(RolloutSection(mode="server"), address, "bfloat16", 1)
    assert isinstance(taken._transport, ShmTransport)
    with pytest.raises(InputError, match=r"rollout\.transport=hccl, but service policy takes its weights by shm"):
        _delivery(RolloutSection(mode="server", transport="hccl"), address, "bfloat16", 1)


@pytest.mark.torch
def test_a_standing_service_may_be_told_to_share_its_device(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.rollout.service import command

    machine("npu", "0.23.0")
    given = argparse.Namespace(transport="npu_ipc", host="127.0.0.1", replicas=1, tensor_parallel=1)
    with pytest.raises(InputError, match=f"without {PICKLED}=1"):
        command._transport(given, "npu", same_host=True)
    monkeypatch.setenv(PICKLED, "1")
    assert command._transport(given, "npu", same_host=True) == "npu_ipc"
    given.tensor_parallel = 2
    with pytest.raises(InputError, match="there are 1 and 2"):
        command._transport(given, "npu", same_host=True)


def test_the_reason_names_those_that_were_passed_over() -> None:
    found = choose(Place("npu", "0.23.0", same_host=True, shares_device=True))
    assert found.name == "shm"
    assert found.reason == (
        "shared memory of this machine, which servers on any device read; "
        "not hccl: a server shares a device with the trainer; "
        "not npu_ipc: the servers run without VLLM_ALLOW_INSECURE_SERIALIZATION=1"
    )


def test_every_transport_says_by_itself_what_it_is() -> None:
    for name, called in {
        "hccl": "hccl",
        "nccl": "nccl",
        "npu_ipc": "npu_ipc",
        "ipc": "ipc",
        "shm": "ascent_shm",
        "http": "ascent_http",
    }.items():
        assert backend(name) == called
    for name in tables.TRANSPORTS:
        made = transport(name, "bfloat16", "cpu", chunk_bytes=100, timeout=3.0)
        assert made.reach.device_kinds
        made.close()
    with pytest.raises(InputError, match=r"unknown transport 'hcll'; did you mean 'hccl'\?\n  Known: hccl, nccl, "):
        transport("hcll", "bfloat16", "cpu")


SCRATCH = """
from ascent.rollout.weights.transports.base import Reach

class PigeonTransport:
    backend = "pigeon_post"
    reach = Reach("a pigeon for each weight", device_kinds=("npu",))

    def __init__(self, dtype, device, *, address=None, chunk_bytes=None, timeout=300.0):
        self.dtype = dtype

    def connect(self, replicas, incarnations): return {}

    def send(self, replicas, tensors, observe): return {}

    def close(self): ...
"""


@pytest.mark.torch
def test_a_new_transport_is_one_file_and_one_line(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Configuration, command line, choice and server command know it by its line in the table."""
    from ascent import cli, config
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.service.server_command import server_command
    from ascent.rollout.service.settings import ServiceSettings

    (tmp_path / "pigeon_for_tests.py").write_text(SCRATCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    machine("npu", "0.29.0")
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: m}\nrollout: {mode: server, transport: pigeon}\n")
    with pytest.raises(InputError, match="transport"):
        config.load(path)
    monkeypatch.setitem(tables.TRANSPORTS, "pigeon", "pigeon_for_tests:PigeonTransport")
    assert config.load(path)[0].rollout.transport == "pigeon"
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert ",pigeon}" in capsys.readouterr().out.replace("\n", "").replace(" ", "")
    for name in set(tables.TRANSPORTS) - {"pigeon"}:
        monkeypatch.delitem(tables.TRANSPORTS, name)
    assert chosen() == "pigeon"
    assert choice.transport("pigeon", "float32", "npu:0").backend == "pigeon_post"
    settings = ServiceSettings(EngineSettings("m", "float32", 64), "npu", transport="pigeon")
    assert '{"backend": "pigeon_post"}' in server_command(settings, 8000)
