"""`ascent doctor`: can this machine train, and if not, what must be changed?"""

from __future__ import annotations

import argparse
from pathlib import Path

from ascent.cli.verb import Verbs, add_verb
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "doctor", _doctor, "can this machine train, and if not, what must be changed?")
    what = verb.add_mutually_exclusive_group()
    what.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="judge the machine that a paste describes (-: standard input)",
    )
    what.add_argument(
        "--run", action="store_true", help="also run the smoke test: torch, devices, all-reduce, TRL, vLLM"
    )
    what.add_argument(
        "--explain", metavar="NAME", help="what became of a setting (NPU_ARCH), or what a rule means (A401)"
    )
    verb.add_argument(
        "--trackers",
        default="",
        metavar="NAMES",
        help="also try these trackers without a network, such as wandb,mlflow",
    )
    verb.add_argument("--need-gib", type=float, metavar="GIB", help="device memory that must be free")
    verb.add_argument("--sleep-mode", action="store_true", default=None, help="the run will use vLLM's sleep mode")
    verb.add_argument("--all", action="store_true", help="also list what is right")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _doctor(args: argparse.Namespace) -> int:
    from ascent.environment import commands

    try:
        if args.explain is not None:
            return commands.explain(args.explain, as_json=args.json)
        return commands.doctor(
            report=args.report,
            smoke_test=args.run,
            tracker_names=[name.strip() for name in args.trackers.split(",") if name.strip()],
            need_gib=args.need_gib,
            sleep_mode=args.sleep_mode,
            everything=args.all,
            as_json=args.json,
        )
    except commands.RefusedError as error:
        raise InputError(str(error), error.mend) from error
