"""Several training processes on this machine, one a device, through torch's launcher (accelerate reads its variables).

Signals reach this process alone. It asks the others to stop through a file, because the launcher would kill them 30
seconds after a signal, in the middle of a long step. Their standard input is a pipe that nobody writes to; it ends when
this process is gone, however it went, and they with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ascent import devices
from ascent.errors import InputError
from ascent.host.machine_share import usable_cores
from ascent.host.process import set_up_process
from ascent.tracking import attempts
from ascent.tracking.run_directory import RunDirectory
from ascent.training.launch.restarts import Outcome, outcome_of, train_to_the_end
from ascent.training.launch.stop_file import STOP_FILE_VARIABLE, stopped_mark
from ascent.training.launch.stop_signals import listening
from ascent.training.launch.terminal import outlive_terminal

WORKER = "ascent.training.launch.worker"


def launch(
    run: Path, processes: int, *, resume: bool, debug: bool, restarts: int | None = None, worker: str = WORKER
) -> int:
    """Train with `processes` processes of the module `worker`, a single one without torch's launcher; returns the exit
    code.

    None of them outlives this process. With `restarts`, a training whose processes fail goes on from its last
    checkpoint, at most so often. Raises InputError when there are fewer devices.
    """
    set_up_process(debug=debug)
    outlive_terminal()
    if devices.kind() != "cpu" and processes > devices.count():
        limited = devices.visible()
        raise InputError(
            f"--devices {processes}, but {devices.count()} {devices.kind()} devices are visible"
            + (f" ({limited})" if limited else ""),
            f"Lower it, or make more visible with {devices.VISIBLE_VARIABLES[devices.kind()]}.",
        )
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "ascent.training.launch.elastic", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", worker, str(run), *["--debug"] * debug]
    directory, counted = RunDirectory(run), restarts is not None
    environment = {"OMP_NUM_THREADS": str(max(1, usable_cores() // processes))} | os.environ

    def train_once(resume: bool, why: str) -> Outcome:
        directory.remove_failures()
        own = attempts.variables(run, attempts.begin(run, why=why, ranks=processes)) if counted else {}
        return _train_once([*command, *["--resume"] * resume], environment | own)

    return train_to_the_end(directory, train_once, resume=resume, most=restarts or 0)


def _train_once(command: list[str], environment: dict[str, str]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="ascent-") as folder:
        stop_file = Path(folder) / "stop"
        child = subprocess.Popen(
            command,
            env={**environment, STOP_FILE_VARIABLE: str(stop_file)},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        code = _wait(child, stop_file)
        if code < 0:
            print(f"error: the process was ended by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
        return outcome_of(code, stopped=stopped_mark(stop_file).exists())


def _wait(child: subprocess.Popen[bytes], stop_file: Path) -> int:
    assert child.stdin is not None
    try:
        with listening(stop_file.touch, child.terminate):
            return child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
        child.stdin.close()
