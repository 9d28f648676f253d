"""`ascent sandbox`: run, check and attack the sandbox for model-written programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ascent.cli.verb import Verbs, add_verb, tell
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    help_line = "run, check and attack the sandbox for model-written programs"
    sandbox = verbs.add_parser("sandbox", help=help_line, description=help_line)
    actions = sandbox.add_subparsers(title="actions", metavar="ACTION", required=True)
    levels = ["none", "syscall-only", "confined", "namespaced"]
    run = add_verb(actions, "run", _run, "judge a program against tests")
    run.add_argument("file", type=Path, help="the program; its suffix tells the language: .py, .c, .cc, .cpp, .rs")
    run.add_argument(
        "--tests", type=Path, metavar="T", help="JSON list of tests (docs/sandbox.md); default: compile only"
    )
    run.add_argument("--require", choices=levels, default="confined", help="weakest level accepted (default: confined)")
    run.add_argument("--seconds", type=float, default=10.0, help="wall time of the program (default: 10)")
    check = add_verb(actions, "check", _check, "which layers this machine gives, what is missing, and why")
    attack = add_verb(actions, "attack", _attack, "let the built-in hostile programs loose; 1 when one gets through")
    attack.add_argument(
        "--level", choices=levels, default="namespaced", help="strongest level used (default: namespaced)"
    )
    attack.add_argument("--kind", action="append", default=[], help="only this kind; may be given several times")
    for action in (run, check, attack):
        action.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _run(args: argparse.Namespace) -> int:
    from ascent.sandbox.reports import run_program
    from ascent.sandbox.types import Limits
    from ascent.tasks.jsonl import load_program, load_tests

    program = load_program(args.file)
    tests = load_tests(args.tests, program.language) if args.tests else ()
    if not args.seconds > 0:
        raise InputError(f"--seconds must be above 0, not {args.seconds}")
    limits = Limits(wall_seconds=args.seconds, cpu_seconds=args.seconds)
    return tell(lambda: run_program(program, tests, args.require, limits), args)


def _check(args: argparse.Namespace) -> int:
    from ascent.sandbox.reports import check_machine

    return tell(check_machine, args)


def _attack(args: argparse.Namespace) -> int:
    from ascent.sandbox.reports import attack_sandbox

    return tell(lambda: attack_sandbox(args.level, args.kind), args)
