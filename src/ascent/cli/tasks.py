"""`ascent tasks`: do these tasks judge programs rightly?"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from ascent.cli.verb import Verbs, add_verb, tell
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    help_line = "do these tasks judge programs rightly?"
    tasks = verbs.add_parser("tasks", help=help_line, description=help_line)
    actions = tasks.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = add_verb(
        actions, "check", _check, "run references and wrong programs; name the tasks that need more or better tests"
    )
    check.add_argument("source", metavar="FILE", help="a task file, or builtin, builtin:FAMILY, builtin:instruct")
    check.add_argument(
        "--held-out", default="0.2", metavar="PART", help="a share, a number, or another file (default: 0.2)"
    )
    check.add_argument("--seed", type=int, default=0, help="of the split (default: 0)")
    check.add_argument("--visible", type=int, default=1, metavar="N", help="as tasks are loaded (default: 1)")
    check.add_argument("--limit", type=int, metavar="N", help="look at no more than N tasks")
    check.add_argument("--mutants", type=int, default=20, metavar="N", help="changed programs of a task (default: 20)")
    check.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of a reference (default: 3)")
    check.add_argument("--packages", nargs="+", default=[], metavar="NAME", help="that programs may import")
    check.add_argument("--slots", type=int, metavar="N", help="programs at once (default: half of the cores)")
    check.add_argument("--all", action="store_true", help="also list notes, and all tasks")
    check.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _check(args: argparse.Namespace) -> int:
    from ascent.rewards.task_check.slightly_wrong import CheckSettings
    from ascent.rewards.task_check.whole_set import check_source

    for name, least in (("visible", 0), ("mutants", 0), ("repeats", 2), ("limit", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError(f"--{name} {value}: expected at least {least}")
    return tell(
        lambda: check_source(
            args.source,
            held_out=_part(args.held_out),
            seed=args.seed,
            visible=args.visible,
            limit=args.limit,
            settings=CheckSettings(repeats=args.repeats, mutants=args.mutants),
            slots=args.slots,
            packages=args.packages,
            progress=_progress(),
            everything=args.all,
        ),
        args,
    )


def _part(text: str) -> float | int | str:
    """A share, a number, or the name of a source."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _progress() -> Callable[[int, int], None]:
    """Tells every few seconds how far it is."""
    told = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= 5 and done < total:
            told = time.monotonic()
            print(f"{done} of {total} tasks", file=sys.stderr, flush=True)

    return progress
