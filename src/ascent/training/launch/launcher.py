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
from ascent.tracking.run_directory import RunDirectory
from ascent.training.launch.stop_file import STOP_FILE_VARIABLE, stopped_mark
from ascent.training.launch.stop_signals import listening
from ascent.training.launch.terminal import outlive_terminal

WORKER = "ascent.training.launch.worker"


def launch(run: Path, processes: int, *, resume: bool, debug: bool, worker: str = WORKER) -> int:
    """Train with `processes` processes of the module `worker`, a single one without torch's launcher; returns the exit
    code.

    None of them outlives this process. Raises InputError when there are fewer devices.
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
    command += ["-m", worker, str(run), *["--resume"] * resume, *["--debug"] * debug]
    RunDirectory(run).remove_failures()
    threads = max(1, usable_cores() // processes)
    with tempfile.TemporaryDirectory(prefix="ascent-") as folder:
        stop_file = Path(folder) / "stop"
        environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | {STOP_FILE_VARIABLE: str(stop_file)}
        child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)
        return _wait(child, stop_file)


def _wait(child: subprocess.Popen[bytes], stop_file: Path) -> int:
    assert child.stdin is not None
    try:
        with listening(stop_file.touch, child.terminate):
            code = child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
        child.stdin.close()
    if code == 0:
        return int(stopped_mark(stop_file).exists())
    if code < 0:
        print(f"error: the process was ended by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
    return 2
