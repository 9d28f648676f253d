"""The end of a process that holds a process group."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def end_at_once(code: int) -> NoReturn:
    """End this process with the exit code, without the interpreter's own finalization.

    Threads of other libraries live as long as the process: gloo's, which `destroy_process_group` doesn't end while
    anything still refers to the group. One that lets go of a Python object during the finalization is ended in the
    middle of C++, and aborts the process ("terminate called without an active exception", exit code -6), which a
    launcher takes for a failed training. So what was asked for at the exit is done, threads are waited for as always,
    and then the process is gone.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
