"""Supervision with stand-in servers: restarts, giving up, hanging, and that nothing outlives its keeper."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
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
from tests.free_port import free_port

from ascent import devices
from ascent.errors import InputError
from ascent.host import keeper
from ascent.rollout.engine import EngineSettings
from ascent.rollout.service import record, server_command, server_process, watch
from ascent.rollout.service.address import ServiceAddress, find_by_urls, find_service, lost
from ascent.rollout.service.processes import cpu_ticks, group_members, start_ticks
from ascent.rollout.service.record import ReplicaRecord, ServiceRecord
from ascent.rollout.service.server_log import excerpt, last_line, log_text
from ascent.rollout.service.server_process import Endpoint, ServerProcess
from ascent.rollout.service.settings import ServiceSettings, check, from_json
from ascent.rollout.service.status import status
from ascent.rollout.service.watch import ReplicaWatch
from ascent.rollout.vllm_arguments import command_line, engine_arguments

ENGINE = EngineSettings("/models/tiny", "float32", 64, kv_cache_bytes=2**24)
SETTINGS = ServiceSettings(ENGINE, "cpu", hung_after=30.0, max_restarts=2)
IMPATIENT = replace(SETTINGS, hung_after=0.6)
SERVER = """
import http.server, json, os, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status = int(open(sys.argv[2]).read()) if self.path == "/health" else 200
        body = open(sys.argv[2] + ".guard", "rb").read() if self.path == "/ascent/status" else b"{}"
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
        self.guard = folder / "health.guard"
        self.guard.write_text("{}")
        port = free_port()
        self.log = folder / "logs" / "replica-0.log"
        self.said: list[str] = []
        self.groups: list[int] = []
        self.states: list[str] = []
        self.react: Callable[[str], None] = lambda state: None  # called at once when a state changes
        self.watch = ReplicaWatch(
            settings,
            command or [sys.executable, "-c", SERVER, str(port), str(self.health)],
            dict(os.environ),
            Endpoint("127.0.0.1", port, "token"),
            ReplicaRecord(f"http://127.0.0.1:{port}", str(self.log)),
            name="replica 0",
            changed=self._changed,
            tell=self.said.append,
            group=lambda sign, group: self.groups.append(group) if sign == "+" else None,
        )
        self.watch.start()

    def _changed(self) -> None:
        self.states.append(self.watch.record.state)
        self.react(self.states[-1])

    def until(self, state: str, restarts: int = 0) -> int:
        """Wait for a state; the process."""
        wait_for(lambda: (self.watch.record.state, self.watch.record.restarts) == (state, restarts))
        return self.watch.record.pid or 0

    def close(self) -> None:
        self.watch.end()
        self.watch.join(120)
        assert not self.watch.is_alive()
        for group in self.groups:
            assert group_members(group) == [], "something outlived its server"


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
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


def test_a_shortage_of_memory_at_a_restart_may_pass(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = watched()
    pid = server.until("ready")
    attempts: list[int] = []

    def start(*arguments: Any) -> ServerProcess:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return ServerProcess(*arguments)

    monkeypatch.setattr(watch, "ServerProcess", start)
    os.kill(pid, signal.SIGKILL)
    server.until("ready", restarts=2)
    assert server.watch.record.why == "it can't be started: this machine is out of something: Cannot allocate memory"


def test_a_watcher_without_files_blames_no_server(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hung_after` is 0.6 s: a second without a look at it restarts nothing."""
    server = watched()
    pid = server.until("ready")

    def no_files(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        short.setattr(socket, "create_connection", no_files)
        short.setattr(http.client.HTTPConnection, "connect", no_files)
        wait_for(lambda: any("can't look after it: [Errno 24]" in said for said in server.said))
        time.sleep(1.5)
    wait_for(lambda: not server.watch._blind)
    assert (server.watch.record.state, server.watch.record.restarts, server.watch.record.pid) == ("ready", 0, pid)


def test_a_server_that_hangs_is_restarted(watched: Callable[..., Watched]) -> None:
    server = watched(IMPATIENT)
    pid = server.until("ready")
    os.kill(pid, signal.SIGSTOP)
    server.until("ready", restarts=1)
    assert "no answer for" in server.watch.record.why
    assert group_members(pid) == []


def test_a_silent_server_that_uses_the_cpu_is_given_longer(watched: Callable[..., Watched]) -> None:
    watching = watched(IMPATIENT).watch
    for code, busy in (("while True: pass", True), ("import time; time.sleep(600)", False)):
        begun = f"print(flush=True)\n{code}"
        process = subprocess.Popen([sys.executable, "-c", begun], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        if not busy:
            wait_for(lambda pid=process.pid: not cpu_ticks(pid)[1])  # type: ignore[misc]
        look = watch._Busy(process.pid)
        time.sleep(0.3)
        assert look.now() == busy
        patience = [silent for silent in (0.5, 0.7, 4.7, 4.9) if watching._hangs(silent, look)]
        assert patience == ([4.9] if busy else [0.7, 4.7, 4.9])
        process.kill()
        process.communicate()


def test_a_server_whose_engine_is_dead_is_restarted(watched: Callable[..., Watched]) -> None:
    server = watched()
    server.until("ready")

    def mend(state: str) -> None:
        if state == "restarting":
            server.health.write_text("200")

    server.react = mend
    server.health.write_text("503")
    server.until("ready", restarts=1)
    assert server.watch.record.why == "its engine is dead (/health answers 503)"


def test_a_server_whose_workers_wait_for_nothing_is_restarted(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_STALL_PROBE", 0.1)
    server = watched(replace(SETTINGS, stuck_after=3.0))
    server.until("ready")
    server.guard.write_text('{"stuck_seconds": 2.9}')
    time.sleep(0.5)
    assert server.watch.record.state == "ready"
    server.guard.write_text('{"stuck_seconds": 3.1}')
    wait_for(lambda: server.watch.record.state == "restarting")
    server.guard.write_text("{}")
    server.until("ready", restarts=1)
    assert server.watch.record.why.startswith("its workers wait for weights that won't come")


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
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", deaf]
    doomed = ServerProcess(command, os.environ, tmp_path / "doomed")
    spared = ServerProcess(command, os.environ, tmp_path / "spared")
    wait_for(lambda: "deaf" in log_text(tmp_path / "doomed") and "deaf" in log_text(tmp_path / "spared"))
    code = keeper.__file__
    kept = subprocess.Popen([sys.executable, "-I", "-c", _IMPATIENT.format(code)], stdin=subprocess.PIPE, text=True)
    assert kept.stdin is not None
    kept.stdin.write(f"+{doomed.pid}\n+{spared.pid}\n-{spared.pid}\n")
    kept.stdin.close()
    assert kept.wait(120) == 0
    wait_for(lambda: doomed.exit_code() is not None)
    assert doomed.exit_code() == -signal.SIGKILL
    assert spared.exit_code() is None
    os.killpg(spared.pid, signal.SIGKILL)


_IMPATIENT = "import runpy; m = runpy.run_path({!r}); m['main'].__globals__['_PATIENCE'] = 0.2; m['main']([])"


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


class OldService:
    """The record of a service that an older version started, and a process in its supervisor's place."""

    def __init__(self, name: str, url: str = "http://127.0.0.1:8123") -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.folder = record.claim(name)
        replicas = [{"url": url, "log": "/l", "state": "ready", "pid": 1, "restarts": 0, "why": ""}]
        pid, started = self.process.pid, start_ticks(self.process.pid)
        old = {"schema": "ascent.service/1", "name": name, "pid": pid, "started": started, "replicas": replicas}
        old |= {"model": "/models/tiny", "max_model_len": 64, "token": "s3cret", "transport": "ascent_shm"}
        text = json.dumps({**old, "settings": {"engine": {"dtype": "float32"}}, "state": "ready", "why": ""})
        (self.folder / "service.json").write_text(text)
        os.utime(self.folder, (0, 0))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def old_service(home: Path) -> Iterator[OldService]:
    made = OldService("old")
    yield made
    made.close()


OLD = r"(?s)service old was started by another version of Ascent \(its record is ascent\.service/1, this version needs "
OLD += r"ascent\.service/3\).*ascent serve --stop old; ascent serve /models/tiny --name old"


def test_a_service_of_another_version_is_refused_by_name_and_by_url(old_service: OldService) -> None:
    with pytest.raises(InputError, match=OLD):
        find_service("old")
    with pytest.raises(InputError, match=OLD):
        find_by_urls(["http://localhost:8123/"])
    assert find_by_urls(["http://127.0.0.1:8124"]) is None
    with pytest.raises(InputError, match="a service named old is running"):
        record.claim("old")
    assert old_service.folder.exists(), "its folder is not taken away from it"
    why = lost(ServiceAddress("old", ("http://127.0.0.1:8123",), "token", old_service.folder))
    assert why is not None
    assert "another version of Ascent" in why


def test_a_service_of_another_version_is_shown_and_can_be_stopped(
    old_service: OldService, capsys: pytest.CaptureFixture[str]
) -> None:
    from ascent.cli import main

    assert main(["serve", "--status"]) == 1
    shown = capsys.readouterr().out
    assert re.search(OLD, shown)
    assert f"old: of another version; /models/tiny; process {old_service.process.pid}" in shown
    assert main(["serve", "--status", "--json"]) == 1
    told = capsys.readouterr().out
    assert "s3cret" not in told
    service = json.loads(told)["services"][0]
    assert (service["name"], service["state"], service["record_schema"]) == ("old", "other version", "ascent.service/1")
    threading.Thread(target=old_service.process.wait, daemon=True).start()  # reaps it, as its parent would
    assert main(["serve", "--stop", "old"]) == 0
    assert old_service.process.poll() == -signal.SIGTERM
    assert not old_service.folder.exists()


def test_what_a_dead_service_of_another_version_left_is_removed(old_service: OldService) -> None:
    old_service.close()
    with pytest.raises(InputError, match="no service named 'old' is running"):
        find_service("old")
    assert "gone (removed from the list)" in status().to_text()
    assert not old_service.folder.exists()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema": "ascent.service/1"}', '{"schema": "other/1", "pid": 1, "started": 1}']
)
def test_a_record_that_says_nothing_is_none(home: Path, content: str) -> None:
    folder = record.claim("odd")
    (folder / "service.json").write_text(content)
    assert record.read_any(folder) is None


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
    command = server_command.server_command(settings, 8000)
    assert command[1:7] == ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "8000"]
    assert command[command.index("--weight-transfer-config") + 1] == '{"backend": "hccl"}'
    assert command[-2:] == ["--seed", "1"], "what is given by hand comes last, so that it holds"
    own = [server_command.server_command(SETTINGS, 8000) for _ in range(2)]
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
    environment = server_command.server_environment(settings, 1, tmp_path / "token", outer)
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
    assert "takes a model, --status, --scale NAME N or --stop NAME" in capsys.readouterr().err
