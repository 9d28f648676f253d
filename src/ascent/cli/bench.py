"""`ascent bench`: how fast a model samples here, batched how, with which settings; and what a step is made of."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ascent.cli.verb import Verbs, add_verb, duration, tell
from ascent.errors import InputError

if TYPE_CHECKING:
    from ascent.bench.figures import Bench


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "bench", _bench, "measure sampling: static, dynamic, tuned; or a training step")
    verb.add_argument(
        "what", nargs="?", metavar="MODEL|CONFIG", help="a hub id, a model's folder, or a run's YAML file or directory"
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings of a run")
    verb.add_argument("--run", type=Path, metavar="RUN", help="take prompts and lengths from what this run sampled")
    verb.add_argument(
        "--stages", nargs="+", metavar="STAGE", help="of padded, static, dynamic, batching, memory-layout, tuned"
    )
    verb.add_argument("--tuned", type=Path, metavar="FILE", help="the settings that `ascent tune` found (tune.yaml)")
    verb.add_argument("--tune", metavar="TIME", help="look for tuned settings first, for so long, such as 5m")
    verb.add_argument("--rows", type=int, default=8, metavar="N", help="completions of a static batch (default: 8)")
    verb.add_argument("--repeat", type=int, default=3, metavar="R", help="measure each stage so often (default: 3)")
    verb.add_argument("--svg", type=Path, metavar="FILE", help="write speed and memory as a picture")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _bench(args: argparse.Namespace) -> int:
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)
    from ascent.bench.report import Report

    return tell(lambda: Report(_sampling(args)), args)


def _sampling(args: argparse.Namespace) -> Bench:
    from ascent.bench.command import Asked, bench
    from ascent.environment.power import device_watts

    found = bench(
        Asked(
            what=args.what,
            overrides=tuple(args.overrides),
            run=args.run,
            stages=None if args.stages is None else tuple(args.stages),
            tuned=args.tuned,
            tune_seconds=None if args.tune is None else duration(args.tune),
            rows=args.rows,
            repeats=args.repeat,
        ),
        watts=device_watts,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if args.svg is not None:
        from ascent.bench.picture import svg

        try:
            args.svg.write_text(svg(found), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--svg {args.svg} can't be written: {error.strerror or error}") from error
    return found
