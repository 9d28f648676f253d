"""`ascent tune`: the fastest settings of the sampling engine, for this model, machine and workload."""

from __future__ import annotations

import argparse
from pathlib import Path

from ascent.cli.verb import Verbs, add_verb, tell


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "tune", _tune, "find the fastest settings of the sampling engine by measuring")
    verb.add_argument(
        "what", metavar="MODEL|CONFIG", help="a hub id, a model's folder, or a run's YAML file or directory"
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings of a run")
    verb.add_argument("--run", type=Path, metavar="RUN", help="take prompts and lengths from what this run sampled")
    verb.add_argument("--budget", default="10m", metavar="TIME", help="such as 90s, 10m or 1h (default: 10m)")
    verb.add_argument("--out", type=Path, metavar="FOLDER", help="what is kept (default: tuning/NAME); goes on there")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _tune(args: argparse.Namespace) -> int:
    from ascent.tuning.budget import seconds_of

    budget = seconds_of(args.budget)
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)
    from ascent.tuning.command import tune

    return tell(lambda: tune(args.what, args.overrides, run=args.run, budget=budget, out=args.out), args)
