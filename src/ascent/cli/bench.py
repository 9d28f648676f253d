"""`ascent bench`: how fast a model samples here, batched how, with which settings; and what a step is made of."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ascent.cli.verb import Verbs, add_verb, duration, refuse_unfit, tell
from ascent.errors import InputError

if TYPE_CHECKING:
    from ascent.bench.figures import Bench
    from ascent.bench.training.report import TrainingBench

# option -> what it measures: the others don't go with it
_OF_SAMPLING = ("run", "workload", "keep", "stages", "tuned", "tune", "svg")
_OF_TRAINING = ("apply", "output")


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "bench", _bench, "measure sampling: static, dynamic, tuned; or a training step")
    verb.add_argument(
        "what", nargs="?", metavar="MODEL|CONFIG", help="a hub id, a model's folder, or a run's YAML file or directory"
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings of a run")
    verb.add_argument("--run", type=Path, metavar="RUN", help="take prompts and lengths from what this run sampled")
    verb.add_argument("--workload", type=Path, metavar="FILE", help="take them from what `ascent tune` kept, or --keep")
    verb.add_argument("--keep", type=Path, metavar="FILE", help="keep prompts and lengths there, for --workload")
    verb.add_argument(
        "--stages", nargs="+", metavar="STAGE", help="of padded, static, dynamic, batching, memory-layout, tuned"
    )
    verb.add_argument("--tuned", type=Path, metavar="FILE", help="the settings that `ascent tune` found (tune.yaml)")
    verb.add_argument("--tune", metavar="TIME", help="look for tuned settings first, for so long, such as 5m")
    verb.add_argument("--rows", type=int, default=8, metavar="N", help="completions of a static batch (default: 8)")
    verb.add_argument("--repeat", type=int, default=3, metavar="R", help="measure each stage so often (default: 3)")
    verb.add_argument("--svg", type=Path, metavar="FILE", help="write speed and memory as a picture")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")
    training = verb.add_argument_group("a training step instead")
    training.add_argument(
        "--training", action="store_true", help="measure the parts of a step of CONFIG, and what holds it back"
    )
    training.add_argument("--steps", type=int, default=5, metavar="N", help="steps to measure (default: 5)")
    training.add_argument("--apply", action="store_true", help="try the first change that alters nothing but time")
    training.add_argument("--devices", type=int, default=1, metavar="N", help="training processes, one a device")
    training.add_argument("--output", type=Path, metavar="FILE", help="write the changed settings there")
    training.add_argument("--force", action="store_true", help="go on although preflight found errors")


def _bench(args: argparse.Namespace) -> int:
    from ascent.host.process import quieten_transformers, set_up_process

    _check_options(args)
    if args.training:
        return tell(lambda: _training(args), args)
    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)
    from ascent.bench.report import Report

    return tell(lambda: Report(_sampling(args)), args)


def _check_options(args: argparse.Namespace) -> None:
    others = _OF_SAMPLING if args.training else _OF_TRAINING
    given = [f"--{name}" for name in others if getattr(args, name) not in (None, False)]
    if given and args.training:
        raise InputError(f"{', '.join(given)}: of sampling, not of a training step", "Leave --training or these out.")
    if given:
        raise InputError(f"{', '.join(given)}: of a training step", "Add --training, or leave these out.")


def _sampling(args: argparse.Namespace) -> Bench:
    from ascent.bench.command import Asked, bench
    from ascent.environment.power import device_watts

    found = bench(
        Asked(
            what=args.what,
            overrides=tuple(args.overrides),
            run=args.run,
            workload=args.workload,
            keep=args.keep,
            stages=None if args.stages is None else tuple(args.stages),
            tuned=args.tuned,
            tune_seconds=None if args.tune is None else duration(args.tune),
            rows=args.rows,
            repeats=args.repeat,
        ),
        watts=device_watts,
        say=_say,
    )
    if args.svg is not None:
        from ascent.bench.picture import svg

        try:
            args.svg.write_text(svg(found), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--svg {args.svg} can't be written: {error.strerror or error}") from error
    return found


def _training(args: argparse.Namespace) -> TrainingBench:
    from ascent import config
    from ascent.bench.training.benching import bench_training
    from ascent.environment import preflight
    from ascent.host.process import set_up_process
    from ascent.rollout.service.sharing import devices_of_servers
    from ascent.tasks.loading import check_sources

    if args.what is None:
        raise InputError("ascent bench --training takes a configuration file")
    if args.devices < 1:
        raise InputError(f"--devices {args.devices}: expected at least 1")
    if args.output is not None and args.output.exists():
        raise InputError(f"--output {args.output}: it exists", "Name a new file.")
    settings, notes = config.load(Path(args.what), args.overrides)
    for note in notes:
        _say(f"note: {note}")
    check_sources(settings.tasks.train, settings.tasks.held_out, settings.tasks.seed)
    set_up_process(debug=args.debug, on_cpu=bool(settings.trainer.get("use_cpu")))
    checked = preflight(
        weight_updates=True,
        sleep_mode=settings.memory.engine_sleep,
        server_mode=settings.rollout.mode == "server",
        trainer_devices=tuple(range(args.devices)),
        server_devices=devices_of_servers(settings, args.devices),
    )
    refuse_unfit(checked, "train", args)
    found = bench_training(
        settings, steps=args.steps, apply=args.apply, say=_say, processes=args.devices, debug=args.debug
    )
    if args.output is not None and found.fragment:
        try:
            args.output.write_text(found.yaml(), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--output {args.output} can't be written: {error.strerror or error}") from error
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
