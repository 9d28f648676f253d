"""One process of a trial: `python -m ascent.training.trial.worker RUN`, as `training.launch.worker` is one of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from ascent.config import RunConfig
from ascent.host.ending import end_at_once
from ascent.tracking.run_directory import RunDirectory
from ascent.training.launch import worker
from ascent.training.trial.found import keep_refusal


def main(argv: Sequence[str] | None = None) -> int:
    """See `training.launch.worker`."""
    os.dup2(2, 1)  # standard output is the report's
    _be_ended_first()
    return worker.main(argv, _try_out, keep_refusal)


def _try_out(config: RunConfig, run: RunDirectory, resume: bool, notes: Sequence[str]) -> bool:
    from ascent.training.trial.trying import try_out

    return try_out(config, run, notes)


def _be_ended_first() -> None:
    """Where the host's memory runs out, the kernel is to end this process and no other (proc_pid_oom_score_adj(5))."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")


if __name__ == "__main__":
    end_at_once(main())
