"""`ascent alarms`: what looks wrong in a run, finished or still training."""

from __future__ import annotations

import argparse
from pathlib import Path

from ascent.cli.verb import Verbs, add_verb, tell


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "alarms", _alarms, "tell what looks wrong in a run, with samples that show it")
    verb.add_argument("run", type=Path, metavar="RUN", help="a run directory, such as runs/NAME")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _alarms(args: argparse.Namespace) -> int:
    from ascent.alarms.over_run import judge_run

    return tell(lambda: judge_run(args.run), args)
