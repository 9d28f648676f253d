"""`ascent train`: train a policy as a configuration file says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ascent.cli.verb import EXIT_BAD, Verbs, add_verb, duration, is_duration, refuse_unfit, tell
from ascent.errors import InputError
from ascent.tables import LAUNCHERS, load

if TYPE_CHECKING:
    from ascent.config import RunConfig
    from ascent.tracking.run_directory import RunDirectory


_REHEARSED = "2m"


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "train", _train, "train a policy as a configuration file says")
    verb.add_argument("config", nargs="?", help="YAML file, such as examples/smollm2_mbpp.yaml")
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the file's")
    verb.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with the run in this folder; settings of model, algorithm, tasks and reward can't change",
    )
    verb.add_argument(
        "--rehearse",
        nargs="?",
        const=_REHEARSED,
        metavar="TIME",
        help=f"try the run before a long training, for about {_REHEARSED} or so long (5m): what to expect of it, and "
        "what to change first",
    )
    verb.add_argument("--json", action="store_true", help="with --rehearse: one JSON object on standard output")
    verb.add_argument("--devices", type=int, default=1, metavar="N", help="training processes, one a device")
    verb.add_argument(
        "--launcher",
        choices=sorted(LAUNCHERS),
        help="how processes are started (default: ray where cluster.address is set, else local, all on this machine)",
    )
    verb.add_argument(
        "--keep-going",
        action="store_true",
        help="where processes fail go on from the last checkpoint, at most cluster.max_restarts times (on a cluster, "
        "without this too)",
    )
    verb.add_argument(
        "--force",
        action="store_true",
        help="go on although preflight found errors, or the memory plan says that it doesn't fit",
    )


def _train(args: argparse.Namespace) -> int:
    from ascent import config
    from ascent.tracking import beginning, run_directory

    if args.devices < 1:
        raise InputError(f"--devices {args.devices}: expected at least 1")
    words = [word for word in (args.config, *args.overrides) if word is not None]
    if args.rehearse is not None:
        return _rehearse(args, words)
    if args.json:
        raise InputError("--json tells what a rehearsal found", "Give it with --rehearse.")
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
    settings = _checked(settings, notes, args)
    with reserved as run:
        run_directory.write_text(run.config, settings.to_yaml())
        _look_at_machine(run, settings, args)
        return _train_in(run, settings, args)


def _rehearse(args: argparse.Namespace, words: list[str]) -> int:
    from ascent import config
    from ascent.tracking import beginning, run_directory
    from ascent.training.rehearsal.rehearsing import folder_name, rehearse

    if args.resume is not None:
        raise InputError("--rehearse tries a run before it is started", "Leave --resume out.")
    for_long = args.rehearse
    if not is_duration(for_long) and "=" in for_long:  # --rehearse key=value
        words, for_long = [*words, for_long], _REHEARSED
    elif not is_duration(for_long) and (not words or "=" in words[0]):  # --rehearse FILE
        words, for_long = [for_long, *words], _REHEARSED
    seconds = duration(for_long)
    if not words:
        raise InputError("ascent train --rehearse takes a configuration file")
    path = Path(words[0])
    settings, notes = config.load(path, words[1:])
    settings = _checked(settings, notes, args)
    if args.launcher != "local":
        raise InputError(
            "--rehearse tries a run on this machine, and cluster.address names others",
            "Rehearse with cluster.address=null, as much of the run as fits here.",
        )
    folder = Path(settings.tracking.folder)
    name = folder_name(folder, settings.tracking.name or run_directory.default_name(path))
    with beginning.new_run(folder, name) as run:
        print(f"rehearsing for about {for_long} in {run.path}", file=sys.stderr)
        _look_at_machine(run, settings, args)
        return tell(
            lambda: rehearse(
                settings,
                run,
                seconds=seconds,
                processes=args.devices,
                launcher=args.launcher,
                debug=args.debug,
            ),
            args,
        )


def _checked(settings: RunConfig, notes: list[str], args: argparse.Namespace) -> RunConfig:
    """The settings, with what --force changes; its notes are told."""
    from ascent.tasks.loading import check_sources

    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if args.force and settings.memory.check == "refuse":
        settings = settings.model_copy(update={"memory": settings.memory.model_copy(update={"check": "warn"})})
    check_sources(settings.tasks.train, settings.tasks.held_out, settings.tasks.seed)
    args.launcher = args.launcher or ("local" if settings.cluster.address is None else "ray")
    return settings


def _look_at_machine(run: RunDirectory, settings: RunConfig, args: argparse.Namespace) -> None:
    """Raise InputError where the training can't begin on this machine."""
    from ascent.environment import preflight, write_environment
    from ascent.host.process import set_up_process
    from ascent.rollout.service.sharing import devices_of_servers

    set_up_process(debug=args.debug, on_cpu=bool(settings.trainer.get("use_cpu")))
    here = args.launcher != "ray"  # else this machine may have no device at all
    checked = preflight(
        weight_updates=True,
        sleep_mode=settings.memory.engine_sleep,
        server_mode=settings.rollout.mode == "server",
        trainer_devices=tuple(range(args.devices)) if here else (),
        server_devices=devices_of_servers(settings, args.devices) if here else (),
    )
    write_environment(run.path, checked)
    refuse_unfit(checked, "train", args)


def _train_in(run: RunDirectory, settings: RunConfig, args: argparse.Namespace) -> int:
    """Train, and when that fails say why, as far as the failure is known."""
    from ascent.environment import explain_failure

    resume = args.resume is not None
    keeps_going = args.keep_going or args.launcher == "ray"
    if args.devices > 1 or keeps_going or args.launcher != "local":
        launch = load(LAUNCHERS, args.launcher)
        restarts = settings.cluster.max_restarts if keeps_going else None
        code = launch(run.path, args.devices, resume=resume, debug=args.debug, restarts=restarts)
    else:
        from ascent.training.launch.worker import work

        try:
            code = work(run.path, resume=resume, debug=args.debug)
        except InputError:
            raise
        except Exception:  # noqa: BLE001 - `work` has printed and kept it
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
