"""The command line: one function per verb, no logic. Help needs no heavy import, so verbs import what they run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascent import __version__
from ascent.errors import InputError

if TYPE_CHECKING:
    from ascent.config import RunConfig
    from ascent.environment.preflight import Preflight
    from ascent.tracking.run_directory import RunDirectory

EXIT_GOOD, EXIT_FINDING, EXIT_BAD = 0, 1, 2
Verb = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code (0 good, 1 finding or changed, 2 bad input or error)."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest and hasattr(args, "overrides") and all("=" in word and not word.startswith("-") for word in rest):
        args.overrides += rest  # settings may also stand after options
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
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
    _add_doctor(verbs)
    _add_diagnose(verbs)
    _add_check_model(verbs)
    _add_train(verbs)
    _add_serve(verbs)
    _add_generate(verbs)
    _add_sandbox(verbs)
    _add_selftest(verbs)
    return parser


def _add_doctor(verbs: argparse._SubParsersAction) -> None:
    verb = _add(verbs, "doctor", _doctor, "can this machine train, and if not, what must be changed?")
    what = verb.add_mutually_exclusive_group()
    what.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="judge the machine that a paste describes (-: standard input)",
    )
    what.add_argument(
        "--run", action="store_true", help="also run the smoke test: torch, devices, all-reduce, TRL, vLLM"
    )
    what.add_argument(
        "--explain", metavar="NAME", help="what became of a setting (NPU_ARCH), or what a rule means (A401)"
    )
    verb.add_argument("--need-gib", type=float, metavar="GIB", help="device memory that must be free")
    verb.add_argument("--sleep-mode", action="store_true", default=None, help="the run will use vLLM's sleep mode")
    verb.add_argument("--all", action="store_true", help="also list what is right")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _doctor(args: argparse.Namespace) -> int:
    from ascent.environment import commands

    try:
        if args.explain is not None:
            return commands.explain(args.explain, as_json=args.json)
        return commands.doctor(
            report=args.report,
            smoke_test=args.run,
            need_gib=args.need_gib,
            sleep_mode=args.sleep_mode,
            everything=args.all,
            as_json=args.json,
        )
    except commands.RefusedError as error:
        raise InputError(str(error), error.mend) from error


def _add_diagnose(verbs: argparse._SubParsersAction) -> None:
    verb = _add(verbs, "diagnose", _diagnose, "what went wrong in a run? Reads its log")
    verb.add_argument("log", help="a log file (also .gz), a run directory, or - for standard input")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _diagnose(args: argparse.Namespace) -> int:
    from ascent.environment import commands

    try:
        return commands.diagnose(args.log, as_json=args.json)
    except commands.RefusedError as error:
        raise InputError(str(error), error.mend) from error


def _add_check_model(verbs: argparse._SubParsersAction) -> None:
    verb = _add(verbs, "check-model", _check_model, "can this model be trained here?")
    verb.add_argument("model", help="a folder, or a hub id that is in the local cache")
    verb.add_argument("--context", type=int, metavar="TOKENS", help="prompt and completion that must fit")
    verb.add_argument("--static", action="store_true", help="read files only: start no other process")
    verb.add_argument("--no-generate", action="store_true", help="don't load the weights for a short generation")
    verb.add_argument("--all", action="store_true", help="also list what is right")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _check_model(args: argparse.Namespace) -> int:
    from ascent.environment import commands

    try:
        return commands.check_model(
            args.model,
            context=args.context,
            generate=not args.no_generate,
            static_only=args.static,
            everything=args.all,
            as_json=args.json,
        )
    except commands.RefusedError as error:
        raise InputError(str(error), error.mend) from error


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
    verb.add_argument("--force", action="store_true", help="go on although preflight found errors")


def _train(args: argparse.Namespace) -> int:
    from ascent import config
    from ascent.tasks.loading import check_sources
    from ascent.tracking import beginning, run_directory

    if args.devices < 1:
        raise InputError(f"--devices {args.devices}: expected at least 1")
    words = [word for word in (args.config, *args.overrides) if word is not None]
    if args.resume is not None:
        reserved = beginning.resumed_run(args.resume)
        settings, notes = config.load_for_resume(run_directory.open_existing(args.resume).config, words)
    elif words:
        path = Path(words[0])
        settings, notes = config.load(path, words[1:])
        name = settings.tracking.name or run_directory.default_name(path)
        reserved = beginning.new_run(Path(settings.tracking.folder), name)
    else:
        raise InputError("ascent train takes a configuration file, or --resume RUN")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    check_sources(settings.tasks.train, settings.tasks.held_out, settings.tasks.seed)
    with reserved as run:
        run_directory.write_text(run.config, settings.to_yaml())
        return _begin(run, settings, args)


def _begin(run: RunDirectory, settings: RunConfig, args: argparse.Namespace) -> int:
    """Look at the machine, then train."""
    from ascent.environment import preflight, write_environment
    from ascent.process import set_up_process

    set_up_process(debug=args.debug, on_cpu=bool(settings.trainer.get("use_cpu")))
    checked = preflight(
        weight_updates=True,
        server_mode=settings.rollout.mode == "server",
        trainer_devices=tuple(range(args.devices)),
        server_devices=settings.server_devices(args.devices),
    )
    write_environment(run.path, checked)
    _refuse_unfit(checked, "train", args)
    return _train_in(run, args)


def _refuse_unfit(checked: Preflight, what: str, args: argparse.Namespace) -> None:
    """Tell what the fast checks found; errors stop the verb unless the user insists."""
    print(checked.line, file=sys.stderr)
    if checked.errors and not args.force:
        from ascent.environment import display

        print(display.findings(list(checked.errors)), file=sys.stderr)
        raise InputError(f"this machine can't {what} as it is", "Mend what is listed above, or insist with --force.")


def _train_in(run: RunDirectory, args: argparse.Namespace) -> int:
    """Train, and when that fails say why, as far as the failure is known."""
    from ascent.environment import explain_failure

    resume = args.resume is not None
    try:
        if args.devices > 1:
            from ascent.training.launch import launch

            code = launch(run.path, args.devices, resume=resume, debug=args.debug)
        else:
            from ascent.training.worker import work

            code = work(run.path, resume=resume, debug=args.debug)
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - the worker has printed and kept it
        code = EXIT_BAD
    if code == EXIT_BAD:
        failures = run.failures()
        known = explain_failure("\n".join(failure.read_text(encoding="utf-8") for failure in failures))
        if known:
            print(f"\n{known}", file=sys.stderr)
        if failures:
            print(
                f"\nthe failure is kept in {failures[-1]}; go on with: ascent train --resume {run.path}",
                file=sys.stderr,
            )
    return code


def _add_serve(verbs: argparse._SubParsersAction) -> None:
    verb = _add(verbs, "serve", _serve, "run sampling servers that trainings share; or show and stop them")
    verb.add_argument("model", nargs="?", help="a hub id or a folder")
    what = verb.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="show the services of this machine and user")
    what.add_argument("--stop", metavar="NAME", help="stop a service of this machine")
    verb.add_argument("--json", action="store_true", help="with --status: one JSON object on standard output")
    verb.add_argument("--name", help="default: the model's")
    verb.add_argument("--replicas", type=int, default=1, metavar="N", help="servers (default: 1)")
    verb.add_argument("-tp", "--tensor-parallel", type=int, default=1, metavar="N", help="devices of each server")
    verb.add_argument("--devices", metavar="0,1,...", help="which of the visible devices (default: from 0 on)")
    verb.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    verb.add_argument("--port", type=int, default=0, help="of the first server (default: free ports)")
    verb.add_argument("--api-key", metavar="KEY", help="better given as ASCENT_API_KEY, which nobody else can see")
    transports = ["auto", "shm", "hccl", "npu_ipc", "nccl", "ipc"]
    verb.add_argument("--transport", choices=transports, default="auto", help="how new weights come (default: auto)")
    verb.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="default: float32 on CPU")
    verb.add_argument("--max-model-len", type=int, metavar="TOKENS", help="prompt and completion; default: the model's")
    verb.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="sampled at once (default: 64)")
    verb.add_argument("--engine-share", type=float, default=0.85, help="of a device's memory (default: 0.85)")
    verb.add_argument("--kv-cache-mb", type=int, metavar="MB", help="exact size of the KV cache; on CPU: 512")
    verb.add_argument("--eager", action=argparse.BooleanOptionalAction, help="no graphs (default on CPU and NPU)")
    verb.add_argument("--trust-remote-code", action="store_true", help="run the model's own Python code")
    verb.add_argument("--max-restarts", type=int, default=5, metavar="N", help="of a server in 30 minutes (default: 5)")
    verb.add_argument("--logs", type=Path, metavar="FOLDER", help="default: ~/.local/state/ascent/serve/NAME")
    verb.add_argument("--vllm", action="append", default=[], metavar="ARG", help="one more argument for vLLM's server")
    verb.add_argument("--force", action="store_true", help="go on although preflight found errors")


def _serve(args: argparse.Namespace) -> int:
    if args.status:
        from ascent.rollout.service.status import status

        return _tell(status, args)
    if args.stop:
        from ascent.rollout.service.running import stop_service

        stop_service(args.stop)
        print(f"service {args.stop} stopped", file=sys.stderr)
        return EXIT_GOOD
    if args.model is None:
        raise InputError("ascent serve takes a model, --status or --stop NAME")
    from ascent.environment import explain_failure, preflight
    from ascent.process import set_up_process
    from ascent.rollout.service import command

    set_up_process(debug=args.debug)
    settings = command.settings(args)
    checked = preflight(
        server_mode=True,
        weight_updates=True,
        graph_mode=not settings.engine.enforce_eager,
        server_devices=settings.devices,
    )
    _refuse_unfit(checked, "serve", args)
    return command.serve(settings, args, explain_failure)


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


def _add_selftest(verbs: argparse._SubParsersAction) -> None:
    help_line = "does the whole chain work on this device? Makes a report to paste into an issue"
    verb = _add(verbs, "selftest", _selftest, help_line)
    verb.add_argument("--device", choices=["npu", "cuda", "cpu"], required=True, help="what to train on")
    verb.add_argument("--steps", type=int, default=20, help="training steps (default: 20)")
    verb.add_argument("--output", type=Path, metavar="FILE", help="default: ascent-selftest-DEVICE.txt")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _selftest(args: argparse.Namespace) -> int:
    from ascent.process import set_up_process
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
