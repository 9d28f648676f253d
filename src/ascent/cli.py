"""The command line: one function per verb, no logic. Help needs no heavy import, so verbs import what they run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

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
    _add_train(verbs)
    return parser


def _add_train(verbs: argparse._SubParsersAction) -> None:
    verb = _add(verbs, "train", _train, "train a policy as a configuration file says")
    verb.add_argument("config", nargs="?", type=Path, help="YAML file, such as examples/smollm2_mbpp.yaml")
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the file's")
    verb.add_argument("--resume", type=Path, metavar="RUN", help="go on with the run in this folder")
    verb.add_argument("--devices", type=int, default=1, metavar="N", help="training processes, one a device")


def _train(args: argparse.Namespace) -> int:
    from ascent import config
    from ascent.tracking import run_directory

    if (args.config is None) == (args.resume is None):
        raise InputError("ascent train takes a configuration file, or --resume RUN")
    if args.resume is not None:
        run = run_directory.open_existing(args.resume)
    else:
        settings, notes = config.load(args.config, args.overrides)
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        name = settings.tracking.name or run_directory.default_name(args.config)
        run = run_directory.create(Path(settings.tracking.folder), name)
        run.config.write_text(settings.to_yaml(), encoding="utf-8")
    if args.devices > 1:
        from ascent.training.launch import launch

        return launch(run.path, args.devices, resume=args.resume is not None, debug=args.debug)
    from ascent.training.worker import work

    return work(run.path, resume=args.resume is not None, debug=args.debug)


def _add(verbs: argparse._SubParsersAction, name: str, run: Verb, help_line: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=help_line, description=help_line)
    verb.add_argument("--debug", action="store_true", help="show tracebacks")
    verb.set_defaults(verb=run)
    return verb


if __name__ == "__main__":
    sys.exit(main())
