"""`ascent regress`: did an upgrade change what a model says?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ascent.cli.verb import Verbs, add_verb, tell
from ascent.errors import InputError

if TYPE_CHECKING:
    from ascent.bench.regress.subject import EngineChoice


def add(verbs: Verbs) -> None:
    help_line = "did an upgrade change a model's outputs, its speed or its memory?"
    regress = verbs.add_parser("regress", help=help_line, description=help_line)
    actions = regress.add_subparsers(title="actions", metavar="ACTION", required=True)
    record = add_verb(actions, "record", _record, "before an upgrade: measure a model on fixed prompts, keep a record")
    record.add_argument("model", help="a hub id, a folder, or builtin:starter")
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the record goes")
    record.add_argument("--prompts", type=Path, metavar="FILE", help="prompts to ask (default: the project's own)")
    _add_engine(record, "colocated")
    compare = add_verb(
        actions, "compare", _compare, "after it: measure the same again and compare; exit code 1: changed"
    )
    compare.add_argument("file", type=Path, help="a record")
    compare.add_argument("other", nargs="?", metavar="MODEL", help="default: the record's; or a second record's file")
    compare.add_argument("--other-weights", action="store_true", help="compare even if the weights are others")
    compare.add_argument(
        "--ignore", nargs="+", choices=["speed", "memory"], default=[], help="tell, but let the exit code be good"
    )
    compare.add_argument("--all", action="store_true", help="list every changed prompt")
    _add_engine(compare, None)


def _add_engine(verb: argparse.ArgumentParser, usual: str | None) -> None:
    verb.add_argument(
        "--engine",
        default=usual,
        metavar="ENGINE",
        help=f"colocated (vLLM), transformers, or service:NAME (default: {usual or 'as recorded'})",
    )
    verb.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help=f"default: {'float32 on CPU, else bfloat16' if usual else 'as recorded'}",
    )
    verb.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="runs, each a start of the engine (default: 5)"
    )
    verb.add_argument("--trust-remote-code", action="store_true", help="run the code that the model brings")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _record(args: argparse.Namespace) -> int:
    _set_up(args)
    from ascent.bench.regress.command import Now, record_model

    choice = _choice(args, args.engine)
    return tell(
        lambda: record_model(args.model, args.out, choice, Now(_environment(), args.repeat), prompts=args.prompts), args
    )


def _compare(args: argparse.Namespace) -> int:
    from ascent.bench.regress import command

    common = {"other_weights": args.other_weights, "ignored": args.ignore, "everything": args.all}
    if args.other is not None and command.is_record(args.other):
        if args.engine or args.dtype:
            raise InputError("two records are compared as they are: --engine and --dtype are for measuring now")
        return tell(lambda: command.compare_files(args.file, Path(args.other), **common), args)
    _set_up(args)
    choice = _choice(args, args.engine or "colocated") if args.engine or args.dtype else None
    now = command.Now(_environment(), args.repeat)
    return tell(
        lambda: command.compare_now(
            args.file, args.other, choice, now, trust_remote_code=args.trust_remote_code, **common
        ),
        args,
    )


def _set_up(args: argparse.Namespace) -> None:
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)


def _choice(args: argparse.Namespace, engine: str) -> EngineChoice:
    from dataclasses import replace

    from ascent.bench.regress.subject import parse_engine

    choice = parse_engine(engine)
    if choice.kind == "service" and args.dtype:
        raise InputError(f"--dtype {args.dtype}: a service computes in what it was started with")
    return replace(choice, dtype=args.dtype, trust_remote_code=args.trust_remote_code)


def _environment() -> dict[str, str]:
    """What the outputs may depend on, by name."""
    from ascent import devices
    from ascent.environment import inspect

    found = inspect()
    named = {
        "python": found.host.python,
        "system": f"{found.host.os_name} {found.host.architecture}".strip(),
        "kernel": found.host.kernel,
        "device": devices.name(),
        "driver": found.npu.driver,
        "CANN": found.cann_version,
    }
    packages = {name: package.version for name, package in found.packages.items()}
    return {name: text for name, text in {**named, **packages}.items() if text}
