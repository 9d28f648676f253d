"""The command line: one function per verb, no logic. Help needs no heavy import, so verbs import what they run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_BAD


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ascent", description="GRPO post-training of language models on Ascend NPUs, CUDA GPUs and CPUs."
    )
    parser.add_argument("--version", action="version", version=f"ascent {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_train(verbs)
    _add_generate(verbs)
    _add_sandbox(verbs)
    return parser


def _add_train(verbs: argparse._SubParsersAction) -> None:
    verb = _add(verbs, "train", _train, "train a policy as a configuration file says")
    verb.add_argument("config", nargs="?", help="YAML file, such as examples/smollm2_mbpp.yaml")
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the file's")
    verb.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with the run in this folder; settings of trainer, rollout, memory, sandbox and tracking may change",
    )
    verb.add_argument("--devices", type=int, default=1, metavar="N", help="training processes, one a device")


def _train(args: argparse.Namespace) -> int:
    from ascent import config
    from ascent.tracking import run_directory

    words = [word for word in (args.config, *args.overrides) if word is not None]
    if args.resume is not None:
        run = run_directory.open_existing(args.resume)
        settings, notes = config.load_for_resume(run.config, words)
    elif words:
        path = Path(words[0])
        settings, notes = config.load(path, words[1:])
        name = settings.tracking.name or run_directory.default_name(path)
        run = run_directory.create(Path(settings.tracking.folder), name)
    else:
        raise InputError("ascent train takes a configuration file, or --resume RUN")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    run_directory.write_text(run.config, settings.to_yaml())
    if args.devices > 1:
        from ascent.training.launch import launch

        return launch(run.path, args.devices, resume=args.resume is not None, debug=args.debug)
    from ascent.training.worker import work

    return work(run.path, resume=args.resume is not None, debug=args.debug)


def _add_generate(verbs: argparse._SubParsersAction) -> None:
    verb = _add(verbs, "generate", _generate, "sample completions: the inference check before training")
    verb.add_argument("model", help="a hub id or a folder")
    verb.add_argument("--prompt", action="append", help="may be given several times")
    verb.add_argument("-n", type=int, default=2, help="completions of each prompt (default: 2)")
    verb.add_argument("--max-tokens", type=int, default=64, help="longest completion (default: 64)")
    verb.add_argument("--temperature", type=float, default=1.0, help="default: 1.0")
    verb.add_argument("--seed", type=int, default=0, help="default: 0")
    verb.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="default: float32 on CPU, else bfloat16"
    )
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _generate(args: argparse.Namespace) -> int:
    from ascent.process import quieten_transformers, set_up_process

    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)
    from ascent.training.sampling_check import check_sampling

    if args.n < 1 or args.max_tokens < 1 or args.temperature < 0:
        raise InputError("-n and --max-tokens must be at least 1, and --temperature at least 0")
    check = check_sampling(
        args.model,
        args.prompt or ["Write a Python function that returns the sum of two numbers."],
        n=args.n,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        dtype=args.dtype,
    )
    print(check.to_text(), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(check.to_json()))
    return EXIT_GOOD


def _add_sandbox(verbs: argparse._SubParsersAction) -> None:
    help_line = "run, check and attack the sandbox for model-written programs"
    sandbox = verbs.add_parser("sandbox", help=help_line, description=help_line)
    actions = sandbox.add_subparsers(title="actions", metavar="ACTION", required=True)
    levels = ["none", "syscall-only", "confined", "namespaced"]
    run = _add(actions, "run", _sandbox_run, "judge a program against tests")
    run.add_argument("file", type=Path, help="the program; its suffix tells the language: .py, .c, .cc, .cpp, .rs")
    run.add_argument(
        "--tests", type=Path, metavar="T", help="JSON list of tests (docs/sandbox.md); default: compile only"
    )
    run.add_argument("--require", choices=levels, default="confined", help="weakest level accepted (default: confined)")
    run.add_argument("--seconds", type=float, default=10.0, help="wall time of the program (default: 10)")
    check = _add(actions, "check", _sandbox_check, "which layers this machine gives, what is missing, and why")
    attack = _add(
        actions, "attack", _sandbox_attack, "let the built-in hostile programs loose; 1 when one gets through"
    )
    attack.add_argument(
        "--level", choices=levels, default="namespaced", help="strongest level used (default: namespaced)"
    )
    attack.add_argument("--kind", action="append", default=[], help="only this kind; may be given several times")
    for action in (run, check, attack):
        action.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _sandbox_run(args: argparse.Namespace) -> int:
    from ascent.sandbox.reports import run_program
    from ascent.sandbox.types import Limits
    from ascent.tasks.jsonl import load_program, load_tests

    program = load_program(args.file)
    tests = load_tests(args.tests, program.language) if args.tests else ()
    if not args.seconds > 0:
        raise InputError(f"--seconds must be above 0, not {args.seconds}")
    limits = Limits(wall_seconds=args.seconds, cpu_seconds=args.seconds)
    return _tell(lambda: run_program(program, tests, args.require, limits), args)


def _sandbox_check(args: argparse.Namespace) -> int:
    from ascent.sandbox.reports import check_machine

    return _tell(check_machine, args)


def _sandbox_attack(args: argparse.Namespace) -> int:
    from ascent.sandbox.reports import attack_sandbox

    return _tell(lambda: attack_sandbox(args.level, args.kind), args)


def _tell(find: Callable[[], Any], args: argparse.Namespace) -> int:
    """Print what one of the sandbox's commands finds."""
    from ascent.sandbox.errors import SandboxError

    try:
        report = find()
    except SandboxError as error:
        raise InputError(str(error)) from error
    print(report.to_text(), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(report.to_json()))
    return EXIT_GOOD if report.good else EXIT_FINDING


def _add(verbs: argparse._SubParsersAction, name: str, run: Verb, help_line: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=help_line, description=help_line)
    verb.add_argument("--debug", action="store_true", help="show tracebacks")
    verb.set_defaults(verb=run)
    return verb


if __name__ == "__main__":
    sys.exit(main())
