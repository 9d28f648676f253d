"""`ascent plan` as it is asked: a configuration, a model's name, or its dimensions by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pydantic

from ascent.config import RunConfig, settled
from ascent.config import file as config_file
from ascent.errors import InputError
from ascent.memory import calibration as calibrations
from ascent.memory import measured
from ascent.memory.cards import card
from ascent.memory.config_json import model_of, read_model
from ascent.memory.from_config import settings_of, within_context
from ascent.memory.model import Model
from ascent.memory.plan import plan
from ascent.memory.report import Report, report

DEFAULT_CARD = "910B3"


def asked(
    what: str | None,
    overrides: Sequence[str] = (),
    *,
    shape: Sequence[str] | None = None,
    device: str | None = None,
    devices: int | None = None,
    cards: int | None = None,
    calibration: Path | None = None,
) -> Report:
    """The report of what was asked for. Raises InputError for what can't be planned."""
    notes: list[str] = []
    if (what is None) == (shape is None):
        raise InputError(
            "ascent plan takes a model (a hub id or a folder), a run (its YAML file or directory), or "
            "--shape KEY=VALUE ...",
            "For example: ascent plan Qwen/Qwen2.5-7B-Instruct --device 910B3",
        )
    if cards is not None and cards < 1:
        raise InputError(f"--cards {cards}: expected at least 1")
    if device is None:
        notes.append(f"no --device: planned for a {DEFAULT_CARD}")
    chosen = card(device or DEFAULT_CARD)
    trainers = 1 if devices is None else devices
    file = None if what is None else named_config(Path(what))
    if file is not None:
        source = config_file.read(file, overrides)
    else:
        source = config_file.of_arguments({"model": {"path": what or "by hand"}}, overrides)
    config = _settled(source, notes)
    settings, assumed = settings_of(config, trainers, chosen.kind)
    notes += assumed
    model = _by_hand(shape) if shape is not None else read_model(config.model.path, config.model.revision)
    settings = within_context(settings, model)
    corrections = calibrations.of_this_machine(chosen.name)
    if calibration is not None:
        corrections = calibrations.read(calibration)
    if corrections is not None:
        notes.append(f"corrected by what was measured ({corrections.name}, {corrections.runs} phases)")
    made = plan(model, chosen, settings, calibration=corrections)
    if model.context and settings.batch.length > model.context:
        notes.append(f"{settings.batch.length} tokens are more than the model's context of {model.context}")
    if model.experts is not None and settings.trained.lora is not None and not model.experts.adapted:
        notes.append("LoRA leaves this model's experts out: adapters are on attention and what all tokens pass through")
    return report(made, notes, all_layouts=cards or 0)


def named_config(what: Path) -> Path | None:
    """The configuration that is named: a YAML file, or that of a run directory."""
    if what.suffix in (".yaml", ".yml"):
        return what
    in_run = what / "config.yaml"
    return in_run if in_run.is_file() and not (what / "config.json").is_file() else None


def _settled(source: config_file.Source, notes: list[str]) -> RunConfig:
    """The configuration; where the training packages aren't installed, without looking at names under `trainer`."""
    if importlib.util.find_spec("trl") is None:
        notes.append("TRL isn't installed here: names and values under trainer aren't checked")
        try:
            return RunConfig.model_validate(source.values)
        except pydantic.ValidationError as error:
            raise InputError(f"{source.origin}: {error}") from error
    config, told = settled(source)
    notes += told
    return config


def _by_hand(words: Sequence[str]) -> Model:
    values = config_file.of_arguments({"model_type": "llama"}, words).values
    return model_of(values, name="a model by hand", source="--shape")


def calibrate(runs: Sequence[Path], file: Path | None) -> str:
    """Make this machine's calibration from runs that kept `memory.json`; a sentence about it."""
    kept = {run: measured.read(run) for run in runs}
    devices = {
        content["plan"]["device"]: content["plan"]["kind"] for content in kept.values() if content and content["plan"]
    }
    if len(devices) != 1:
        what = f"of several devices: {', '.join(devices)}" if devices else "none with a plan and measured peaks"
        raise InputError(
            f"{', '.join(map(str, runs))}: {what}", "Give run directories with memory.json, of one device."
        )
    ((device, kind),) = devices.items()
    if kind == "cpu":
        raise InputError(
            "these runs are of a CPU, where resident memory is that of packages more than of tensors",
            "Calibrate by runs on an accelerator.",
        )
    target = file or calibrations.default_file()
    found = [each for run in runs for each in measured.measured_phases(run)]
    made = calibrations.fit(target.stem, found, device)
    made.write(target)
    factors = ", ".join(f"{name} x {factor:.2f}" for name, factor in made.factors.items())
    off = f"off by at most {made.spread[0]:.0%} over, {made.spread[1]:.0%} under"
    return f"{target}: from {made.runs} phases: {factors}; {off}"
