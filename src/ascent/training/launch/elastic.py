"""torch's launcher with an exit code that says what became of the processes, and that ends with whoever started it.

It is run as `python -m ascent.training.launch.elastic ARGS`; ARGS are those of `torch.distributed.run`. A failed
process has printed its own error; the launcher adds no traceback.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

from torch.distributed import DistNetworkError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from ascent.host.keeper import end_with_standard_input
from ascent.training.launch import restarts
from ascent.training.launch.stop_file import stop_file


def main(argv: list[str]) -> int:
    """Launch and wait; 0, or one of the exit codes of `restarts`."""
    end_with_standard_input()
    arguments = parse_args(argv)
    _stop_at_hangup(arguments)
    try:
        run(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode != 2:
            print(f"error: process {rank} ended with exit code {failure.exitcode}", file=sys.stderr, flush=True)
            return restarts.FAILED
        return restarts.REFUSED
    except SignalException as error:
        print(f"error: stopped by {error.sigval.name}", file=sys.stderr, flush=True)
        return restarts.SIGNALLED
    except DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        print(f"error: port {arguments.master_port} of this machine is taken", file=sys.stderr, flush=True)
        return restarts.PORT_TAKEN
    return 0


def _stop_at_hangup(arguments: object) -> None:
    """A hangup asks for a stop after the step, where torch's launcher would end its processes within 30 seconds."""
    file = stop_file()
    if file is None or not hasattr(arguments, "signals_to_handle"):
        return

    def ask(number: int, frame: FrameType | None) -> None:
        file.touch()

    arguments.signals_to_handle = "SIGTERM,SIGINT,SIGQUIT"
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, ask)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
