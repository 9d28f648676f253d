"""`ascent report`: runs as a page in the browser, or as one HTML file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ascent.cli.verb import EXIT_GOOD, Verbs, add_verb
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "report", _report, "look at runs in the browser: curves, completions, tests, tasks, times")
    verb.add_argument("run", nargs="?", type=Path, default=Path("runs"), help="a run, or a folder of runs (runs/)")
    verb.add_argument(
        "--port", type=int, default=0, metavar="N", help="of this machine's 127.0.0.1 (default: a free one)"
    )
    what = verb.add_mutually_exclusive_group()
    what.add_argument("--export", type=Path, metavar="FILE", help="write the run as one HTML file instead")
    what.add_argument(
        "--pack", action="store_true", help="merge the run's small rollout files, up to its last checkpoint, instead"
    )
    verb.add_argument("--language", choices=("en", "zh"), help="default: that of LANG, and what the browser chose")


def _report(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 65536:
        raise InputError(f"--port {args.port}: expected 0 to 65535")
    if args.pack:
        from ascent.tracking.packing import pack

        print(pack(args.run).to_text())
        return EXIT_GOOD
    try:
        from ascent.report.page.export import export
        from ascent.report.page.serving import serve
        from ascent.report.page.texts import language_of
    except ModuleNotFoundError as error:
        raise InputError(
            f"ascent report needs the package {error.name}",
            "pip install 'ascent-grpo[report]', or --no-deps -r requirements/report.txt beside the locked packages.",
        ) from error
    language = args.language or language_of(os.environ)
    if args.export is not None:
        written = export(args.run, args.export, language=language)
        room = f"; {written.left_out} more had no room" if written.left_out else ""
        for problem in written.unread:
            print(f"note: {problem.file}: {problem.what}", file=sys.stderr)
        print(f"{written.path}: {written.size / 1e6:.1f} MB, {written.completions} completions{room}", file=sys.stderr)
        return EXIT_GOOD
    serve(args.run, port=args.port, language=language)
    return EXIT_GOOD
