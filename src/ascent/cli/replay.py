"""`ascent replay`: a step that was skipped, once more, on its device and on CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from ascent.cli.verb import Verbs, add_verb, tell


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "replay", _replay, "repeat a step whose gradient was not finite, on its device and on CPU")
    verb.add_argument("run", type=Path, help="a run directory, such as runs/NAME")
    verb.add_argument("step", type=int, help="a step in its bad-steps/")
    verb.add_argument("--device", choices=["cpu", "npu", "cuda"], help="default: what this machine trains on")
    verb.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="what is computed in; default: as the run did"
    )
    verb.add_argument("--rank", type=int, metavar="N", help="whose rows; default: of the process that found something")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _replay(args: argparse.Namespace) -> int:
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)
    from ascent.training.replay.replaying import replay

    return tell(
        lambda: replay(args.run, args.step, device=args.device, dtype=args.dtype, rank=args.rank),
        args,
    )
