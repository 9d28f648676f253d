"""The processes of a training: they end with the one that was started, and a lost terminal loses no work."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from ascent.rollout.service.processes import group_members, start_ticks
from ascent.tracking.run_directory import RunDirectory
from ascent.training.launch import stop_signals

# The real launcher, torch's launcher and the real worker; what it works on is a sleep that looks for the stop file.
_WORKER = """
import os, subprocess, sys, time
from pathlib import Path
from ascent.training.launch import worker
from ascent.training.launch.stop_file import stop_file, stopped_mark

def work(run, *, resume, debug, overrides, do):
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # as a data loader does
    (run / f"pids-{os.environ['RANK']}.tmp").write_text(f"{os.getppid()} {os.getpid()} {left.pid}")
    (run / f"pids-{os.environ['RANK']}.tmp").rename(run / f"pids-{os.environ['RANK']}")
    while not stop_file().exists():
        time.sleep(0.05)
    left.kill()
    stopped_mark(stop_file()).touch()
    return 0

worker.work = work
sys.exit(worker.main())
"""
_LAUNCH = """
import sys
from pathlib import Path
from ascent import devices
devices.kind = lambda: "cpu"
from ascent.training.launch.launcher import launch
sys.exit(launch(Path(sys.argv[1]), 2, resume=False, debug=False, worker="sleeping_worker"))
"""


@dataclass
class Launched:
    """A launcher of two processes, in a session of its own as a terminal would give it."""

    run: Path
    process: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        """torch's launcher, then for each rank itself and what it started; waits until all are there."""
        files = [self.run / f"pids-{rank}" for rank in (0, 1)]
        wait_for(lambda: all(file.exists() for file in files) or self.process.poll() is not None, 60)
        assert self.process.poll() is None, (self.run / "log").read_text()
        told = [[int(pid) for pid in file.read_text().split()] for file in files]
        return [told[0][0], *told[0][1:], *told[1][1:]]


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "not within the time"
        time.sleep(0.02)


def gone(pids: list[int]) -> Callable[[], bool]:
    return lambda: all(start_ticks(pid) is None for pid in pids)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Launched]]:
    """One launcher for each way to go, all started at once because most of their time is importing."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "sleeping_worker.py").write_text(_WORKER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    made = {}
    for way in ("launcher killed", "torch's launcher killed", "hangup", "hangup of torch's launcher"):
        run = folder / way.replace(" ", "-")
        run.mkdir()
        command = [sys.executable, "-c", _LAUNCH, str(run)]
        with open(run / "log", "wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        made[way] = Launched(run, process)
    yield made
    for each in made.values():
        each.process.kill()
        each.process.wait()
        for file in each.run.glob("pids-*"):
            for pid in map(int, file.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.torch
def test_nothing_outlives_a_launcher_that_was_killed(launched: dict[str, Launched]) -> None:
    one = launched["launcher killed"]
    pids = one.pids()
    os.killpg(one.process.pid, signal.SIGKILL)
    wait_for(gone(pids))
    assert all(group_members(pid) == [] for pid in pids)


@pytest.mark.torch
def test_nothing_outlives_torchs_launcher(launched: dict[str, Launched]) -> None:
    one = launched["torch's launcher killed"]
    pids = one.pids()
    os.kill(pids[0], signal.SIGKILL)
    assert one.process.wait(20) == 2
    wait_for(gone(pids))


@pytest.mark.torch
@pytest.mark.parametrize("who", ["hangup", "hangup of torch's launcher"])
def test_a_hangup_asks_several_processes_to_stop(launched: dict[str, Launched], who: str) -> None:
    one = launched[who]
    pids = one.pids()
    os.kill(one.process.pid if who == "hangup" else pids[0], signal.SIGHUP)
    assert one.process.wait(20) == 1, "stopped before the end, with what was done kept"
    wait_for(gone(pids))


_IN_A_TERMINAL = """
import os, sys, time
from ascent.training.launch.stop_signals import listening
from ascent.training.launch.terminal import outlive_terminal
outlive_terminal()
asked = []
def insist(): raise KeyboardInterrupt
with listening(lambda: asked.append(1), insist):
    print("begun", flush=True)
    until = time.monotonic() + float(sys.argv[2])
    while not asked and time.monotonic() < until:
        time.sleep(0.01)
    for step in range(20):  # hangups come in several copies, and the terminal is gone meanwhile
        print("step", step, flush=True)
        print("step", step, file=sys.stderr, flush=True)
        time.sleep(0.01)
open(sys.argv[1], "w").write("asked" if asked else "not asked")
"""


@pytest.mark.parametrize(("ignored", "expected"), [(False, "asked"), (True, "not asked")])
def test_a_lost_terminal_asks_for_a_stop_and_breaks_nothing(tmp_path: Path, ignored: bool, expected: str) -> None:
    """The session of a real terminal; `nohup` ignores the signal, and then the work goes on."""
    script, kept = tmp_path / "script.py", tmp_path / "kept"
    script.write_text(_IN_A_TERMINAL)
    pid, terminal = pty.fork()
    if pid == 0:
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        os.execv(sys.executable, [sys.executable, str(script), str(kept), "0.6" if ignored else "60"])
    said = b""
    while b"begun" not in said:
        said += os.read(terminal, 100)
    os.close(terminal)  # the kernel sends SIGHUP, and writing to the terminal fails from now on
    if not ignored:
        os.kill(pid, signal.SIGHUP)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert kept.read_text() == expected


def test_a_group_ends_with_the_process_that_kept_it() -> None:
    code = """
import subprocess, sys, time
from ascent.host.keeper import Keeper
with Keeper() as keeper:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    keeper.tell("+", child.pid)
    print(child.pid, flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    wait_for(gone([child]))


def test_only_impatience_insists() -> None:
    said: list[str] = []
    with stop_signals.listening(lambda: said.append("asked"), lambda: said.append("insisted")):
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert said == ["asked"]
        os.kill(os.getpid(), signal.SIGINT)
        assert said == ["asked", "insisted"]


@pytest.mark.torch
def test_a_former_starts_failures_do_not_explain_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that failed on rank 3 goes on with one process, or with two: no traceback of that time is left."""
    from ascent import devices
    from ascent.training.launch import launcher, worker

    run = RunDirectory(tmp_path)
    run.config.write_text(yaml.safe_dump({"model": {"path": "absent"}}))
    seen: list[list[Path]] = []
    training = types.ModuleType("ascent.training.run")  # the real one imports for ten seconds

    def train(*_: object, **__: object) -> types.SimpleNamespace:
        seen.append(run.failures())
        return types.SimpleNamespace(stopped=False)

    training.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ascent.training.run", training)
    monkeypatch.setattr(devices, "kind", lambda: "cpu")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: seen.append(run.failures()))
    monkeypatch.setattr(launcher, "_wait", lambda child, file: 0)
    for start in (
        lambda: worker.work(tmp_path, resume=True, debug=True),
        lambda: launcher.launch(tmp_path, 2, resume=True, debug=True),
    ):
        run.failure(3).write_text("RuntimeError: of another time")
        assert start() == 0
    assert seen == [[], []]
