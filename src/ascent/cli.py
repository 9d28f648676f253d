"""The command line: one function per verb, no logic. Help needs no heavy import, so verbs import what they run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from ascent import __version__
from ascent.errors import InputError

EXIT_GOOD, EXIT_FINDING, EXIT_BAD = 0, 1, 2
Verb = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code (0 good, 1 finding or changed, 2 bad input or error)."""
    args = _parser().parse_args(argv)
    try:
        return args.verb(args)
    except InputError as error:
        if args.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ascent", description="GRPO post-training of language models on Ascend NPUs, CUDA GPUs and CPUs."
    )
    parser.add_argument("--version", action="version", version=f"ascent {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    del verbs
    return parser


def _add(verbs: argparse._SubParsersAction, name: str, run: Verb, help_line: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=help_line, description=help_line)
    verb.add_argument("--debug", action="store_true", help="show tracebacks")
    verb.set_defaults(verb=run)
    return verb


if __name__ == "__main__":
    sys.exit(main())
