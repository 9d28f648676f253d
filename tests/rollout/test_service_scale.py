"""`ascent serve --scale`: the supervisor over stand-ins, and what a training makes of a service that changes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("uvicorn")

from tests.rollout.fake_servers import PostsOnce, address_of
from tests.rollout.test_service_client import Bench, assert_whole, bench, finish, groups, wait_for

from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings
from ascent.rollout.service import record, supervisor, watch
from ascent.rollout.service.processes import group_members, start_ticks
from ascent.rollout.service.scaling import ScaleOrder, scale_service, scaled
from ascent.rollout.service.settings import ServiceSettings
from ascent.rollout.service.supervisor import Supervisor

__all__ = ["bench"]
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ServiceSettings(EngineSettings("/models/tiny", "float32", 64, max_num_seqs=2), "cpu")
TOKEN = "token-of-the-stand-ins"


class StandingService:
    """A supervisor in a thread, whose servers are stand-ins in processes of their own."""

    def __init__(self, settings: ServiceSettings, folder: Path) -> None:
        self.folder = record.claim("stand")
        record.write_private(self.folder / record.TOKEN, TOKEN)
        owner = (os.getpid(), start_ticks(os.getpid()) or 0)
        self.supervisor = Supervisor(self.folder, settings, folder / "logs", TOKEN, owner)
        self._thread = threading.Thread(target=self.supervisor.run)
        self._thread.start()
        self.pids: set[int] = set()
        wait_for(lambda: record.read(self.folder) is not None)
        wait_for(lambda: self.record.state == "ready")

    @property
    def record(self) -> record.ServiceRecord:
        found = record.read(self.folder)
        assert found is not None
        self.pids |= {replica.pid for replica in found.replicas if replica.pid}
        return found

    def close(self) -> None:
        self.supervisor.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert not any(group_members(pid) for pid in self.pids), "something outlived the service"


@pytest.fixture
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StandingService]]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setattr(watch, "_PROBE", 0.1)
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.4)
    command = [sys.executable, "-m", "tests.rollout.fake_server_process"]
    monkeypatch.setattr(supervisor, "server_command", lambda settings, port: [*command, str(port)])
    made: list[StandingService] = []

    def make(**changes: Any) -> StandingService:
        made.append(StandingService(replace(SETTINGS, **changes), tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(url: str, **body: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.loads(answer.read()))


def test_a_service_grows_and_shrinks_and_what_runs_is_finished(
    standing: Callable[..., StandingService], capfd: pytest.CaptureFixture[str]
) -> None:
    service = standing()
    [first] = service.record.replicas
    scale_service("stand", 2)
    kept, second = service.record.replicas
    assert kept == first, "the servers that stand are left alone"
    assert second.state == "ready"
    assert second.log.endswith("replica-1.log")
    assert ask(second.url, prompt="x")["prompt"] == "x"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(ask, second.url, prompt="long", seconds=2.0)
        time.sleep(0.3)
        shrinking = pool.submit(scale_service, "stand", 1)
        wait_for(lambda: "draining" in [replica.state for replica in service.record.replicas])
        assert not shrinking.done()
        assert running.result()["prompt"] == "long", "a request that runs is finished first"
        shrinking.result()
    assert service.record.replicas == (first,)
    assert service.record.settings["replicas"] == 1
    assert service.record.state == "ready"
    assert not group_members(second.pid or 0)
    told = capfd.readouterr().err
    assert "service stand: replicas: 2" in told
    assert f"{second.url} draining" in told


def test_what_does_not_end_is_broken_off(standing: Callable[..., StandingService]) -> None:
    service = standing(replicas=2, drain_seconds=0.5)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(ask, service.record.replicas[1].url, prompt="endless", seconds=600.0)
        time.sleep(0.3)
        scale_service("stand", 1)
        assert running.exception(60) is not None
    assert len(service.record.replicas) == 1


def test_a_new_server_that_does_not_start_leaves_the_others(
    standing: Callable[..., StandingService], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ascent.cli import main

    service = standing()
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "server_command", lambda settings, port: ["false"])
        with pytest.raises(InputError, match=r"(?s)replica 1 failed.*ended with code 1.*replica-1\.log"):
            scale_service("stand", 2)
    assert ask(service.record.replicas[0].url, prompt="x")
    assert main(["serve", "--status"]) == 1
    assert "change to 2 replicas: failed: replica 1 failed" in capsys.readouterr().out
    assert main(["serve", "--scale", "stand", "1"]) == 0, "what failed can be given up"
    assert main(["serve", "--scale", "stand", "2"]) == 0
    assert main(["serve", "--scale", "stand", "0"]) == 2
    assert main(["serve", "--scale", "stand", "many"]) == 2
    assert main(["serve", "--scale", "nobody", "2"]) == 2
    error = capsys.readouterr().err
    for words in ("needs at least one", "whole numbers", "no service named 'nobody'"):
        assert words in error
    (service.folder / "scale.json").write_text("{")
    wait_for(lambda: not (service.folder / "scale.json").exists())
    assert len(service.record.replicas) == 2, "an order that can't be read changes nothing"


@pytest.mark.parametrize(
    ("replicas", "chosen", "taken", "expected"),
    [
        (2, None, (), (1, 2, 3, 0)),
        (1, None, (), (1, 2)),
        (2, (5, 4), (), (1, 2, 5, 4)),
        (3, None, (), (1, 2, 0, 3, 4, 5)),
        (3, None, ("3",), "2 more replicas need 4 devices; of the 6 that the service sees 3 are free"),
        (2, (1, 4), (), "device 1 is taken"),
        (2, (4, 5), ("5",), "device 5 is taken"),
        (2, (4, 6), (), "device 6: the service sees 6 devices"),
        (2, (4, 4), (), "2 different devices are needed"),
        (1, (4, 5), (), "no replica needs one"),
        (0, None, (), "at least one"),
    ],
)
def test_the_devices_of_new_replicas(
    replicas: int, chosen: tuple[int, ...] | None, taken: tuple[str, ...], expected: Any, monkeypatch: Any
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    settings = replace(SETTINGS, device_kind="cuda", tensor_parallel=2, devices=(1, 2), visible_devices=6)
    order = ScaleOrder("x", replicas, chosen)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            scaled(settings, order, taken)
    else:
        devices = scaled(settings, order, taken).devices
        assert devices[:2] == expected[:2]
        assert sorted(devices[2:]) == sorted(expected[2:])


def write_record(folder: Path, *servers: Any, draining: tuple[Any, ...] = ()) -> None:
    replicas = tuple(
        record.ReplicaRecord(each.url, "log", "draining" if each in draining else "ready") for each in servers
    )
    started = start_ticks(os.getpid()) or 0
    found = record.ServiceRecord(
        folder.name, os.getpid(), started, "m", 64, TOKEN, "shm", SETTINGS.to_json(), replicas, state="ready"
    )
    record.write(folder, found)


def test_a_training_samples_from_a_new_server_only_with_weights_and_leaves_one_that_is_drained(
    bench: Bench, tmp_path: Path
) -> None:
    first, second = bench.server(), bench.server()
    folder = tmp_path / "service"
    folder.mkdir()
    write_record(folder, first)
    delivery = PostsOnce()
    engine = bench.engine(address=address_of(first, folder=folder), delivery=delivery)
    joined = bench.engine(
        address=address_of(first, folder=folder), hold=engine.hold, sends_weights=False, delivery=delivery
    )
    joined.update_weights(iter(()), 1)
    write_record(folder, first, second)
    for each in (engine, joined):
        wait_for(lambda each=each: len(each._dispatcher.members) == 2 and all(m.up for m in each._dispatcher.members))  # type: ignore[misc]
    for each in (engine, joined):
        each.submit(groups(8))
        assert_whole(finish(each), groups(8))
    assert not second.sampled, "it has no weights yet"
    engine.update_weights(iter(()), 2)
    joined.update_weights(iter(()), 2)
    assert delivery.delivered[-1] == (2, [first.url, second.url])
    for each in (engine, joined):
        second.sampled.clear()
        each.submit(groups(8))
        assert_whole(finish(each), groups(8))
        assert second.sampled

    second.gate.clear()
    second.sampled.clear()
    engine.submit(groups(8))
    wait_for(lambda: bool(second.sampled))
    write_record(folder, first, second, draining=(second,))
    wait_for(lambda: any(member.leaving for member in engine._dispatcher.members))
    before = len(second.sampled)
    time.sleep(0.2)
    assert len(second.sampled) == before, "a server that is drained is given nothing new"
    second.gate.set()
    assert_whole(finish(engine), groups(8))
    wait_for(lambda: [member.replica.url for member in engine._dispatcher.members] == [first.url])
    write_record(folder, first)
    engine.update_weights(iter(()), 3)
    assert delivery.delivered[-1] == (3, [first.url])
    engine.stats()


def test_a_server_whose_weights_are_wrong_is_not_sampled_from(bench: Bench, tmp_path: Path) -> None:
    first, second = bench.server(), bench.server()
    folder = tmp_path / "service"
    folder.mkdir()
    write_record(folder, first)
    engine = bench.engine(address=address_of(first, folder=folder))
    write_record(folder, first, second)
    wait_for(lambda: len(engine._dispatcher.members) == 2 and all(m.up for m in engine._dispatcher.members))
    second.control_failures = [500]
    engine.update_weights(iter(()), 2)
    engine.submit(groups(8))
    assert_whole(finish(engine), groups(8))
    assert not second.sampled
    engine.update_weights(iter(()), 3)
    engine.submit(groups(8))
    assert_whole(finish(engine), groups(8))
    assert second.sampled
