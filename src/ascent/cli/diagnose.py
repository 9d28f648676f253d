"""`ascent diagnose`: what went wrong in a run? Reads its log."""

from __future__ import annotations

import argparse

from ascent.cli.verb import Verbs, add_verb
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "diagnose", _diagnose, "what went wrong in a run? Reads its log")
    verb.add_argument("log", help="a log file (also .gz), a run directory, or - for standard input")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _diagnose(args: argparse.Namespace) -> int:
    from ascent.environment import commands

    try:
        return commands.diagnose(args.log, as_json=args.json)
    except commands.RefusedError as error:
        raise InputError(str(error), error.mend) from error
