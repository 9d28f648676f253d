"""`ascent selftest`: does the whole chain work on this device?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ascent.cli.verb import EXIT_FINDING, EXIT_GOOD, Verbs, add_verb
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    help_line = "does the whole chain work on this device? Makes a report to paste into an issue"
    verb = add_verb(verbs, "selftest", _selftest, help_line)
    verb.add_argument("--device", choices=["npu", "cuda", "cpu"], required=True, help="what to train on")
    verb.add_argument("--steps", type=int, default=20, help="training steps (default: 20)")
    verb.add_argument("--output", type=Path, metavar="FILE", help="default: ascent-selftest-DEVICE.txt")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _selftest(args: argparse.Namespace) -> int:
    from ascent.host.process import set_up_process
    from ascent.selftest.checks import selftest

    if args.steps < 2:
        raise InputError(f"--steps {args.steps}: expected at least 2")
    set_up_process(debug=args.debug)
    report = selftest(args.device, args.steps, tell=lambda result: print(result.head, file=sys.stderr, flush=True))
    file = args.output or Path(f"ascent-selftest-{args.device}.txt")
    file.write_text(report.to_text() + "\n", encoding="utf-8")
    print(json.dumps(report.to_json()) if args.json else report.to_text())
    print(f"the report is in {file}: paste it into an issue", file=sys.stderr)
    return EXIT_GOOD if report.good else EXIT_FINDING
