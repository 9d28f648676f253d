"""One process of a training run: `python -m ascent.training.launch.worker RUN [--resume] [--debug] [key=value ...]`.

The run directory holds the configuration, which a launcher may override. Exit codes are those of `ascent`; 1 says that
the run was stopped before its end and can be resumed, 3 that an unexpected exception ended it.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from ascent import config
from ascent.errors import InputError
from ascent.host.ending import end_at_once
from ascent.host.keeper import end_with_standard_input
from ascent.host.process import quieten_transformers, set_up_process
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.tracking.trackers import places
from ascent.tracking.trackers.names import check_installed, named
from ascent.training.launch.rank_log import print_to_own_file
from ascent.training.launch.stop_file import stop_file, stopped_mark
from ascent.training.launch.terminal import outlive_terminal
from ascent.training.records.out_of_memory import OutOfMemoryError

# (configuration, run directory, whether it is resumed, sentences for the user) -> whether it was stopped before its end
Do = Callable[[config.RunConfig, RunDirectory, bool, Sequence[str]], bool]


def tell(run: Path, error: InputError) -> None:
    """Say on standard error what the user can mend."""
    print(f"error: {error}", file=sys.stderr, flush=True)


def main(
    argv: Sequence[str] | None = None,
    do: Do | None = None,
    refused: Callable[[Path, InputError], None] = tell,
) -> int:
    """Train in a run directory that has its configuration, or do something else there. `refused` is told of what the
    user can mend."""
    parser = argparse.ArgumentParser(prog="ascent.training.launch.worker")
    parser.add_argument("run", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--debug", action="store_true")
    args = parser.parse_args(argv)
    if stop_file() is not None:
        end_with_standard_input()
    print_to_own_file(_rank())
    try:
        return work(args.run, resume=args.resume, debug=args.debug, overrides=args.overrides, do=do)
    except InputError as error:
        if args.debug:
            raise
        if _rank() == 0 or isinstance(error, OutOfMemoryError):  # of other errors the others say the same
            refused(args.run, error)
        return 2
    except Exception:  # noqa: BLE001 - `work` has printed and kept it
        return 3


def work(path: Path, *, resume: bool, debug: bool, overrides: Sequence[str] = (), do: Do | None = None) -> int:
    """Train in this process, or do what `do` does; 0 when the run came to its end, 1 when it was stopped. `overrides`
    are `key=value`.

    An unexpected exception is printed, kept in the run directory, and raised.
    """
    run = run_directory.open_existing(path)
    settings, _ = config.load(run.config, overrides)
    set_up_process(debug=debug, on_cpu=bool(settings.trainer.get("use_cpu")))
    outlive_terminal()
    if "RANK" not in os.environ:  # a launcher has removed those of all processes, before the first could fail
        run.remove_failures()
    run.failure(_rank()).unlink(missing_ok=True)
    try:
        quieten_transformers(debug=debug)
        trackers = named(settings.trainer.get("report_to", "none"))
        check_installed(trackers)
        notes = places.prepare(run, trackers)  # before their packages are imported
        stopped = (do or _train)(settings, run, resume, notes)
        _leave_the_group()
    except InputError:
        raise
    except Exception:
        run_directory.write_text(run.failure(_rank()), traceback.format_exc())
        traceback.print_exc()
        raise
    launcher = stop_file()
    if launcher is None:
        return int(stopped)
    if stopped:  # the launcher takes any exit code but 0 for a failure, and would kill the other processes
        stopped_mark(launcher).touch()
    return 0


def _train(settings: config.RunConfig, run: RunDirectory, resume: bool, notes: Sequence[str]) -> bool:
    from ascent.training.run import train

    return train(settings, run, resume=resume, notes=notes).stopped


def _leave_the_group() -> None:
    """End this process's part in the process group, if there is one."""
    from accelerate import PartialState

    PartialState().destroy_process_group()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


if __name__ == "__main__":
    end_at_once(main())
