"""Several training processes on this machine, one a device, through torch's launcher (accelerate reads its variables).

Signals reach this process alone. It asks the others to stop through a file, because the launcher would kill them 30
seconds after a signal, in the middle of a long step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from ascent import devices
from ascent.errors import InputError
from ascent.process import set_up_process
from ascent.training.launch.stop_file import STOP_FILE_VARIABLE, stopped_mark


def launch(run: Path, processes: int, *, resume: bool, debug: bool) -> int:
    """Train with `processes` processes; returns the exit code. Raises InputError when there are fewer devices."""
    set_up_process(debug=debug)
    if devices.kind() != "cpu" and processes > devices.count():
        limited = devices.visible()
        raise InputError(
            f"--devices {processes}, but {devices.count()} {devices.kind()} devices are visible"
            + (f" ({limited})" if limited else ""),
            f"Lower it, or make more visible with {devices.VISIBLE_VARIABLES[devices.kind()]}.",
        )
    command = [sys.executable, "-m", "ascent.training.launch.elastic", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "ascent.training.launch.worker", str(run), *["--resume"] * resume, *["--debug"] * debug]
    threads = max(1, (os.cpu_count() or 1) // processes)
    with tempfile.TemporaryDirectory(prefix="ascent-") as folder:
        stop_file = Path(folder) / "stop"
        environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | {STOP_FILE_VARIABLE: str(stop_file)}
        child = subprocess.Popen(command, env=environment, start_new_session=True)
        return _wait(child, stop_file)


def _wait(child: subprocess.Popen[bytes], stop_file: Path) -> int:
    def ask(number: int, frame: FrameType | None) -> None:
        if stop_file.exists():
            child.terminate()
            return
        stop_file.touch()
        print(
            "\nstopping after this step, with a checkpoint (again: stop now, without one)", file=sys.stderr, flush=True
        )

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if child.poll() is None:
            child.terminate()
            child.wait()
    if code == 0:
        return int(stopped_mark(stop_file).exists())
    return 2
