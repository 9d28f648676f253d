"""`ascent export`: the weights of a run as a folder that stands by itself."""

from __future__ import annotations

import argparse
from pathlib import Path

from ascent.cli.verb import Verbs, add_verb, tell


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "export", _export, "write a run's weights as a model folder that says where they come from")
    verb.add_argument("run", type=Path, help="a run directory, such as runs/NAME")
    verb.add_argument(
        "--checkpoint", type=int, metavar="STEP", help="default: what the run ended with, or its last checkpoint"
    )
    verb.add_argument("--output", type=Path, metavar="FOLDER", help="default: exports/step-N in the run directory")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _export(args: argparse.Namespace) -> int:
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)
    from ascent.training.export import export

    return tell(lambda: export(args.run, checkpoint=args.checkpoint, output=args.output), args)
