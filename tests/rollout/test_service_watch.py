"""Supervision with stand-in servers: restarts, giving up, hanging, and that nothing outlives its keeper."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascent import devices
from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings
from ascent.rollout.service import keeper, launch, record, server_process, watch
from ascent.rollout.service.processes import group_members, start_ticks
from ascent.rollout.service.record import ReplicaRecord, ServiceRecord
from ascent.rollout.service.server_log import excerpt, last_line, log_text
from ascent.rollout.service.server_process import Endpoint, ServerProcess
from ascent.rollout.service.settings import ServiceSettings, check, from_json
from ascent.rollout.service.watch import ReplicaWatch
from ascent.rollout.vllm_arguments import command_line, engine_arguments

ENGINE = EngineSettings("/models/tiny", "float32", 64, kv_cache_bytes=2**24)
SETTINGS = ServiceSettings(ENGINE, "cpu", hung_after=0.6, max_restarts=2)
SERVER = """
import http.server, json, os, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status = int(open(sys.argv[2]).read()) if self.path == "/health" else 200
        body = json.dumps({}).encode()
        self.send_response(status); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
print("a server begins", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # an engine that is left behind
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Watched:
    """A stand-in server and the thread that watches it."""

    def __init__(self, folder: Path, settings: ServiceSettings, command: list[str] | None = None) -> None:
        self.health = folder / "health"
        self.health.write_text("200")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log = folder / "logs" / "replica-0.log"
        self.stop = threading.Event()
        self.said: list[str] = []
        self.groups: list[int] = []
        self.states: list[str] = []
        self.watch = ReplicaWatch(
            settings,
            command or [sys.executable, "-c", SERVER, str(port), str(self.health)],
            dict(os.environ),
            Endpoint("127.0.0.1", port, "token"),
            ReplicaRecord(f"http://127.0.0.1:{port}", str(self.log)),
            name="replica 0",
            stop=self.stop,
            changed=lambda: self.states.append(self.watch.record.state),
            tell=self.said.append,
            group=lambda sign, group: self.groups.append(group) if sign == "+" else None,
        )
        self.watch.start()

    def until(self, state: str, restarts: int = 0) -> int:
        """Wait for a state; the process."""
        wait_for(lambda: (self.watch.record.state, self.watch.record.restarts) == (state, restarts))
        return self.watch.record.pid or 0

    def close(self) -> None:
        self.stop.set()
        self.watch.join(20)
        assert not self.watch.is_alive()
        for group in self.groups:
            assert group_members(group) == [], "something outlived its server"


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    monkeypatch.setattr(server_process, "_SETTLE", 0.2)
    monkeypatch.setattr(watch, "_PROBE", 0.1)
    made: list[Watched] = []

    def make(settings: ServiceSettings = SETTINGS, command: list[str] | None = None) -> Watched:
        made.append(Watched(tmp_path, settings, command))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_killed_server_is_restarted_and_what_it_left_is_ended(watched: Callable[..., Watched]) -> None:
    server = watched()
    pid = server.until("ready")
    assert len(group_members(pid)) == 2
    os.kill(pid, signal.SIGKILL)
    again = server.until("ready", restarts=1)
    assert again != pid
    assert group_members(pid) == [], "the engine of the killed server must not keep its memory"
    assert server.watch.record.why == f"process {pid} was killed by SIGKILL"
    assert server.states == ["starting", "ready", "restarting", "restarting", "ready"]


def test_a_server_that_hangs_is_restarted(watched: Callable[..., Watched]) -> None:
    server = watched()
    pid = server.until("ready")
    os.kill(pid, signal.SIGSTOP)
    server.until("ready", restarts=1)
    assert "no answer for" in server.watch.record.why
    assert group_members(pid) == []


def test_a_silent_server_that_uses_the_cpu_is_given_longer(watched: Callable[..., Watched]) -> None:
    watching = watched().watch
    for code, busy in (("while True: pass", True), ("import time; time.sleep(60)", False)):
        process = subprocess.Popen([sys.executable, "-c", code])
        time.sleep(0.3)
        look = watch._Busy(process.pid)
        time.sleep(0.3)
        assert look.now() == busy
        patience = [silent for silent in (0.5, 0.7, 4.7, 4.9) if watching._hangs(silent, look)]
        assert patience == ([4.9] if busy else [0.7, 4.7, 4.9])
        process.kill()
        process.wait()


def test_a_server_whose_engine_is_dead_is_restarted(watched: Callable[..., Watched]) -> None:
    server = watched()
    server.until("ready")
    server.health.write_text("503")
    wait_for(lambda: server.watch.record.state == "restarting")
    server.health.write_text("200")
    server.until("ready", restarts=1)
    assert server.watch.record.why == "its engine is dead (/health answers 503)"


def test_too_many_restarts_are_a_failure(watched: Callable[..., Watched]) -> None:
    server = watched()
    for restarts in range(3):
        os.kill(server.until("ready", restarts), signal.SIGKILL)
    wait_for(lambda: server.watch.record.state == "failed")
    assert "it was restarted 2 times within 30 minutes" in server.watch.record.why
    assert "replica 0: failed" in server.said[-1]


def test_restarts_that_are_long_ago_do_not_count(watched: Callable[..., Watched]) -> None:
    server = watched(replace(SETTINGS, restart_window=0.01))
    for restarts in range(3):
        os.kill(server.until("ready", restarts), signal.SIGKILL)
    server.until("ready", restarts=3)


def test_a_server_that_never_served_is_not_started_again(watched: Callable[..., Watched]) -> None:
    server = watched(command=[sys.executable, "-c", "print('out of memory'); raise SystemExit(3)"])
    wait_for(lambda: server.watch.record.state == "failed")
    assert server.watch.record.restarts == 0
    assert server.watch.record.why.endswith("ended with code 3")
    assert log_text(server.log) == "out of memory\n"
    assert last_line(server.log) == "out of memory"


def test_a_server_that_takes_too_long_to_start_is_a_failure(watched: Callable[..., Watched]) -> None:
    server = watched(replace(SETTINGS, start_timeout=0.5), [sys.executable, "-c", "import time; time.sleep(60)"])
    wait_for(lambda: server.watch.record.state == "failed")
    assert server.watch.record.why == "it did not serve within 0.5 s"


def test_a_command_that_is_not_there_is_a_failure(watched: Callable[..., Watched]) -> None:
    server = watched(command=["/nonexistent"])
    wait_for(lambda: server.watch.record.state == "failed")
    assert server.watch.record.why == "it can't be started: [Errno 2] No such file or directory: '/nonexistent'"


def test_an_excerpt_of_a_log_begins_with_the_cause() -> None:
    place = "(EngineCore pid=17) ERROR 11-30 05:03:35 [core.py:1433] "
    log = [
        f"{place}Traceback (most recent call last):",
        f"{place}ValueError: No available memory for the cache blocks.",
    ]
    log += ["ValueError: No available memory for the cache blocks.", *("  File x, line 1" for _ in range(40))]
    log += ["RuntimeError: Engine core initialization failed.", "", ""]
    lines = excerpt("\n".join(log)).splitlines()
    assert lines[:2] == ["ValueError: No available memory for the cache blocks.", "..."]
    assert lines[-1] == "RuntimeError: Engine core initialization failed."
    assert len(lines) == 14
    assert excerpt("") == ""


def test_the_keeper_ends_groups_when_its_writer_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
    doomed = ServerProcess(command, os.environ, tmp_path / "log")
    spared = ServerProcess(command, os.environ, tmp_path / "log")
    code = keeper.__file__
    kept = subprocess.Popen([sys.executable, "-I", "-c", _IMPATIENT.format(code)], stdin=subprocess.PIPE, text=True)
    assert kept.stdin is not None
    kept.stdin.write(f"+{doomed.pid}\n+{spared.pid}\n-{spared.pid}\n")
    kept.stdin.close()
    assert kept.wait(20) == 0
    wait_for(lambda: doomed.exit_code() is not None)
    assert doomed.exit_code() == -signal.SIGKILL
    assert spared.exit_code() is None
    os.killpg(spared.pid, signal.SIGKILL)


_IMPATIENT = "import runpy; m = runpy.run_path({!r}); m['main'].__globals__['_PATIENCE'] = 0.2; m['main']()"


def a_record(name: str, pid: int | None = None) -> ServiceRecord:
    pid = os.getpid() if pid is None else pid
    replica = ReplicaRecord("http://127.0.0.1:1", "/logs/0", "ready", 7, 1, "killed")
    return ServiceRecord(
        name, pid, start_ticks(pid) or 0, "model", 64, "s3cret", "shm", SETTINGS.to_json(), (replica,), "ready"
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_records_are_private_and_read_back(home: Path) -> None:
    folder = record.claim("tiny")
    assert folder == home / "ascent" / "serve" / "tiny"
    written = a_record("tiny")
    record.write(folder, written)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "service.json").stat().st_mode) == 0o600
    found = record.read(folder)
    assert found is not None
    assert found.alive()
    assert found.replicas == written.replicas
    assert from_json(found.settings) == SETTINGS
    with pytest.raises(InputError, match=r"(?s)tiny is running.*--stop tiny"):
        record.claim("tiny")


def test_what_a_dead_service_left_is_replaced(home: Path) -> None:
    folder = record.claim("tiny")
    gone = subprocess.Popen(["true"])
    gone.wait()
    record.write(folder, replace(a_record("tiny", gone.pid), started=1))
    assert record.claim("tiny") == folder
    assert record.read(folder) is None


def test_a_service_that_is_just_starting_is_left_alone(home: Path) -> None:
    folder = record.claim("tiny")
    (folder / "token").write_text("x")
    with pytest.raises(InputError, match="another service named tiny is just starting"):
        record.claim("tiny")
    assert (folder / "token").exists()
    os.utime(folder, (0, 0))
    record.claim("tiny")
    assert not (folder / "token").exists()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b"])
def test_names_that_are_no_folders_are_refused(home: Path, name: str) -> None:
    with pytest.raises(InputError, match="service name"):
        record.claim(name)
    assert record.claim(record.name_for(name)).parent == home / "ascent" / "serve"


def test_status_tells_and_removes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ascent.cli import main

    record.write(record.claim("alive"), a_record("alive"))
    record.write(record.claim("dead"), replace(a_record("dead"), started=1))
    (record.services_folder() / "just-being-made").mkdir()
    assert main(["serve", "--status", "--json"]) == 1, "one is gone"
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "ascent.serve/1"
    assert [(service["name"], service["removed"]) for service in told["services"]] == [("alive", False), ("dead", True)]
    assert "s3cret" not in json.dumps(told)
    assert main(["serve", "--status"]) == 0
    text = capsys.readouterr().out
    assert "alive: ready; model" in text
    assert "1 restarts (last: killed)" in text
    assert "dead" not in text
    assert main(["serve", "--stop", "dead"]) == 2
    assert "no service named 'dead'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"host": "0.0.0.0"}, None, r"other machines could reach the servers, so an API key is needed"),
        ({"host": "::"}, None, "API key is needed"),
        ({}, "short", "at least 16 ASCII characters"),
        ({}, "with spaces in the middle", "without spaces"),
        ({"replicas": 0}, None, "at least one replica"),
        ({"replicas": 2, "tensor_parallel": 2, "devices": (0, 1)}, None, "need 4 devices, but --devices names 2"),
        ({"replicas": 2, "devices": (1, 1)}, None, "named twice"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(changes: dict[str, Any], key: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(replace(SETTINGS, **changes), key)


def test_good_settings_pass() -> None:
    check(SETTINGS, None)
    check(replace(SETTINGS, host="::1"), None)
    check(replace(SETTINGS, host="0.0.0.0", replicas=2, devices=(3, 1)), "x" * 16)


def test_engine_settings_become_options_of_the_server() -> None:
    options = command_line(engine_arguments(replace(ENGINE, prefix_caching=False, kv_cache_bytes=None)))
    assert options[:4] == ["--model", "/models/tiny", "--dtype", "float32"]
    assert "--no-enable-prefix-caching" in options
    assert "--enforce-eager" in options
    assert "--kv-cache-memory-bytes" not in options
    assert options[options.index("--logprobs-mode") + 1] == "processed_logprobs"


def test_the_command_and_environment_of_a_server(tmp_path: Path) -> None:
    settings = replace(
        SETTINGS,
        device_kind="npu",
        replicas=2,
        tensor_parallel=2,
        devices=(0, 1, 2, 3),
        transport="hccl",
        worker_extension="x.Y",
        extra_arguments=("--seed", "1"),
    )
    command = launch.server_command(settings, 8000)
    assert command[1:7] == ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "8000"]
    assert command[command.index("--weight-transfer-config") + 1] == '{"backend": "hccl"}'
    assert command[-2:] == ["--seed", "1"], "what is given by hand comes last, so that it holds"
    own = [launch.server_command(SETTINGS, 8000) for _ in range(2)]
    first, second = (each[each.index("--seed") + 1] for each in own)
    assert first != second, "two servers would draw the same numbers"
    outer = {
        "PATH": "/bin",
        "ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7",
        "VLLM_API_KEY": "secret",
        "RANK": "3",
        "TORCHELASTIC_RUN_ID": "x",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    environment = launch.server_environment(settings, 1, tmp_path / "token", outer)
    assert environment["ASCEND_RT_VISIBLE_DEVICES"] == "6,7"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert environment["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert environment["VLLM_LOGGING_LEVEL"] == "INFO"
    assert not {"VLLM_API_KEY", "RANK", "TORCHELASTIC_RUN_ID"} & set(environment)
    assert "secret" not in str(command) + str(environment)


def test_a_device_that_is_not_visible_is_refused() -> None:
    assert devices.restricted_to("cuda", [1, 0], {}) == {"CUDA_VISIBLE_DEVICES": "1,0"}
    assert devices.restricted_to("cpu", [1], {}) == {}
    with pytest.raises(InputError, match="device 2: ASCEND_RT_VISIBLE_DEVICES=4,5 shows 2 devices"):
        devices.restricted_to("npu", [2], {"ASCEND_RT_VISIBLE_DEVICES": "4,5"})


def test_serve_without_a_model_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    from ascent.cli import main

    assert main(["serve"]) == 2
    assert "takes a model, --status or --stop NAME" in capsys.readouterr().err
