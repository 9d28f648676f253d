"""torch's launcher with an exit code that says what became of the processes.

It is run as `python -m ascent.training.launch.elastic ARGS`; ARGS are those of `torch.distributed.run`. A failed
process has printed its own error; the launcher adds no traceback.
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run


def main(argv: list[str]) -> int:
    """Launch and wait; 0, or the exit code of the process that failed first."""
    try:
        run(parse_args(argv))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode != 2:
            print(f"error: process {rank} ended with exit code {failure.exitcode}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
