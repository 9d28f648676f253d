"""The command line: every verb has a file here with its options and no logic.

A new verb is a new file with ``add(verbs)``, and its line in ``VERBS``. Help must stay instant: a verb's file imports
what it runs only when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import sys
import traceback
from collections.abc import Sequence

from ascent import __version__
from ascent.cli.verb import EXIT_BAD
from ascent.errors import InputError

_EXIT_READER_LEFT = 128 + 13  # as of a program that a closed pipe ends

# Modules of this package, in the order in which help lists them.
VERBS = (
    "doctor",
    "diagnose",
    "check_model",
    "plan",
    "train",
    "serve",
    "cluster",
    "generate",
    "tune",
    "bench",
    "evaluate",
    "tasks",
    "export",
    "report",
    "alarms",
    "regress",
    "replay",
    "sandbox",
    "selftest",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code (0 good, 1 finding or changed, 2 bad input or error)."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if rest and hasattr(args, "overrides") and all("=" in word and not word.startswith("-") for word in rest):
        args.overrides += rest  # settings may also stand after options
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code: int = args.verb(args)
        sys.stdout.flush()
        return code
    except InputError as error:
        if args.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD
    except PermissionError as error:
        if args.debug:
            raise
        print(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}", file=sys.stderr)
        return EXIT_BAD
    except BrokenPipeError:
        if not _reader_left():
            raise
        return _EXIT_READER_LEFT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_BAD
    except Exception:  # noqa: BLE001 - Python's own exit code would be 1, which says that something was found
        traceback.print_exc()
        return EXIT_BAD


def _reader_left() -> bool:
    """Whether nobody reads standard output any more (`ascent ... | head`). Then what is left goes nowhere."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def build_parser() -> argparse.ArgumentParser:
    """The parser of `ascent` with all its verbs."""
    parser = argparse.ArgumentParser(
        prog="ascent", description="GRPO post-training of language models on Ascend NPUs, CUDA GPUs and CPUs."
    )
    parser.add_argument("--version", action="version", version=f"ascent {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name in VERBS:
        importlib.import_module(f"ascent.cli.{name}").add(verbs)
    return parser
