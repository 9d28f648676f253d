"""`ascent plan`: does a training fit this card, and what has to change if it doesn't?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ascent.cli.verb import EXIT_FINDING, EXIT_GOOD, Verbs, add_verb
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "plan", _plan, "does a training fit this card?")
    verb.add_argument(
        "what", nargs="?", metavar="MODEL|CONFIG", help="a hub id, a model's folder, or a run's YAML file or directory"
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings of a run")
    verb.add_argument("--shape", nargs="+", metavar="KEY=VALUE", help="a model by hand, in the words of config.json")
    verb.add_argument("--device", metavar="CARD", help="such as 910B3, H100, npu:64GB (default: 910B3)")
    verb.add_argument("--devices", type=int, metavar="N", help="training processes, one a device (default: 1)")
    verb.add_argument("--cards", type=int, metavar="N", help="which layouts of so many cards fit?")
    verb.add_argument("--calibration", type=Path, metavar="FILE", help="corrections that were measured")
    verb.add_argument(
        "--calibrate",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="make the corrections of this machine from finished runs",
    )
    verb.add_argument("--svg", type=Path, metavar="FILE", help="write the bars as a picture")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _plan(args: argparse.Namespace) -> int:
    from ascent.memory import asked

    if args.calibrate:
        print(asked.calibrate(args.calibrate, args.calibration))
        return EXIT_GOOD
    made = asked.asked(
        args.what,
        args.overrides,
        shape=args.shape,
        device=args.device,
        devices=args.devices,
        cards=args.cards,
        calibration=args.calibration,
    )
    print(made.to_text(), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        import json

        print(json.dumps(made.to_json()))
    if args.svg is not None:
        from ascent.memory.picture import svg

        try:
            args.svg.write_text(svg(made.plan), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--svg {args.svg} can't be written: {error.strerror or error}") from error
    return EXIT_GOOD if made.plan.verdict != "no" else EXIT_FINDING
