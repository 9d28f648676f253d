"""What is evaluated: a model, an adapter, a run, or one of its checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ascent import config as configuration
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.models.adapter_base import EXPORT_FILE
from ascent.models.folder import model_folder
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.evaluate.folder import SETTINGS_FILE
from ascent.training.run_weights import check_whole, checkpoint_weights, ended_with


@dataclass(frozen=True, slots=True)
class Target:
    """Weights in `folder`, a whole model. `given` is what the user called them, `name` is short; `config` and `step`
    are of the run that trained them, None and 0 where no run did."""

    given: str
    name: str
    folder: Path
    step: int = 0
    config: RunConfig | None = None


def find_target(given: str, revision: str | None = None) -> Target:
    """What the user names; an adapter is merged into its base, once. Raises InputError for what holds no weights that
    can be evaluated."""
    path = Path(given).expanduser()
    if not path.is_dir():
        if given.startswith((".", "/", "~")):
            raise InputError(f"{given}: no such folder", "Give a hub id, a model's folder, a run, or a checkpoint.")
        return Target(given, given.rstrip("/").rpartition("/")[2].replace(":", "-"), model_folder(given, revision))
    path = path.resolve()
    if (path / SETTINGS_FILE).is_file():
        mend = f"Look at it with `ascent report {given}`, or name the model that it evaluated."
        raise InputError(f"{given}: the results of an evaluation, not a model", mend)
    if (path / "config.yaml").is_file():
        run = run_directory.open_existing(path)
        weights, step = ended_with(run)
        if weights is None:
            weights = checkpoint_weights(run, None)
            step = run_directory.read_state(weights).step
        return _of_run(given, run, weights, step)
    run_path = path.parent.parent
    if path.parent.name == "checkpoints" and (run_path / "config.yaml").is_file():
        run, step = RunDirectory(run_path), _checkpoint_number(path)
        return _of_run(given, run, checkpoint_weights(run, step), step)
    runs = sorted(each.parent.name for each in path.glob("*/config.yaml"))
    if runs and not (path / "config.json").is_file():
        raise InputError(f"{given}: a folder of runs", f"Name one of them, such as {Path(given) / runs[-1]}.")
    return _exported(given, path) or Target(given, path.name, model_folder(str(path)))


def _of_run(given: str, run: RunDirectory, weights: Path, step: int) -> Target:
    if not (weights / "adapter_config.json").is_file():
        check_whole(weights)
    settings, _ = configuration.load(run.config)
    return Target(given, f"{run.path.name}-step{step}", model_folder(str(weights)), step, settings)


def _checkpoint_number(path: Path) -> int:
    try:
        return run_directory.step_of(path)
    except ValueError:
        raise InputError(
            f"{path} is not named as a checkpoint", "Give one such as checkpoints/checkpoint-50."
        ) from None


def _exported(given: str, path: Path) -> Target | None:
    """A folder of weights that a run gave; it may lie in the run directory, or anywhere else."""
    file = path / EXPORT_FILE
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        step, name = int(content["step"]), str(content["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error
    run = next((each for each in (path.parent, path.parent.parent) if (each / "config.yaml").is_file()), None)
    settings = None if run is None else configuration.load(run / "config.yaml")[0]
    return Target(given, f"{name}-step{step}", model_folder(str(path)), step, settings)
