"""The weights of a run as a folder that stands by itself: standard Hugging Face files, and where they come from."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent import config as configuration
from ascent.compat.fsdp_model import save_whole_model
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.models.adapter_base import EXPORT_FILE, find_base
from ascent.models.adapters import is_adapter, read_adapter
from ascent.models.digests import TOKENIZER_FILES, matching, weight_files
from ascent.models.folder import model_folder
from ascent.models.merging import merge
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.provenance import Kind, provenance, write_provenance

_MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES)
_PIECES = ("pytorch_model_fsdp*", "global_step*")  # of FSDP and of DeepSpeed


@dataclass(frozen=True, slots=True)
class Export:
    """An exported folder and what is known of its weights."""

    folder: Path
    provenance: dict[str, Any]
    good: bool = True

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        return {**self.provenance, "folder": str(self.folder)}

    def to_text(self) -> str:
        """For people."""
        known = self.provenance
        return (
            f"{self.folder}: weights of {known['run']} after step {known['step']} ({known['kind']})\n"
            f"where they come from: {EXPORT_FILE} and README.md there"
        )


def export(path: Path, *, checkpoint: int | None = None, output: Path | None = None) -> Export:
    """Write the weights of the run in `path` into `output` (default: `exports/step-N` in the run), whole or not at all.

    They are those that the run ended with, or of its last complete checkpoint when it has not ended or gone on since,
    or of `checkpoint` (a step). A LoRA adapter is merged into its base, in the dtype that was trained. Raises
    InputError when there are no such weights, when they are cut over processes, or when `output` exists.
    """
    run = run_directory.open_existing(path)
    settings, _ = configuration.load(run.config)
    source, step = _ended_with(run) if checkpoint is None else (None, checkpoint)
    end = source is not None
    if source is None:
        source = _checkpoint(run, checkpoint)
        step = run_directory.read_state(source).step
    folder = (output or run.path / "exports" / f"step-{step}").absolute()
    if folder.exists():
        raise InputError(f"{folder} exists already", "Choose another folder with --output.")
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        kind = _write_weights(source, beside, settings)
        content = provenance(run, settings, beside, kind=kind, step=step, end=end)
        write_provenance(beside, content)
        beside.rename(folder)
    except OSError as error:
        raise InputError(f"{source} can't be written to {folder}: {error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Export(folder, content)


def save_trained_model(trainer: Any, run: RunDirectory, settings: RunConfig) -> None:
    """Write the weights that a run ends with into its `model/`, with where they come from; whole or not at all.

    Collective over all ranks.
    """
    folder, beside = run.path / "model", run.path / ".model.tmp"
    main = trainer.accelerator.is_main_process
    if main:
        shutil.rmtree(beside, ignore_errors=True)
    save_whole_model(trainer.accelerator)
    trainer.save_model(str(beside))
    if not main:
        return
    kind: Kind = "adapter" if is_adapter(beside) else "full"
    step = trainer.state.global_step
    write_provenance(beside, provenance(run, settings, beside, kind=kind, step=step, end=True))
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier end, when the run went on
    beside.rename(folder)


def _ended_with(run: RunDirectory) -> tuple[Path | None, int]:
    """`model/` and its step, unless checkpoints go further: then the run has gone on since."""
    file = run.path / "model" / EXPORT_FILE
    if not file.is_file():
        return None, 0
    try:
        step = int(json.loads(file.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error
    last = run.last_checkpoint()
    if last is not None and run_directory.read_state(last).step > step:
        return None, 0
    return file.parent, step


def _checkpoint(run: RunDirectory, number: int | None) -> Path:
    if number is None:
        last = run.last_checkpoint()
        if last is None:
            raise InputError(
                f"{run.path}: neither a model nor a complete checkpoint in it",
                "A run writes a checkpoint every trainer.save_steps steps, and its model/ when it comes to its end.",
            )
        return last
    folder = run.checkpoints / f"checkpoint-{number}"
    if not (folder / run_directory.STATE_FILE).is_file():
        files = run.checkpoints.glob(f"checkpoint-*/{run_directory.STATE_FILE}")
        steps = sorted(int(file.parent.name.partition("-")[2]) for file in files)
        what = "isn't complete: the run ended while it was written" if folder.is_dir() else "isn't there"
        raise InputError(f"{folder} {what}", f"Complete checkpoints: {', '.join(map(str, steps)) or 'none'}.")
    return folder


def _write_weights(source: Path, folder: Path, settings: RunConfig) -> Kind:
    if is_adapter(source):
        adapter = read_adapter(source)
        merge(adapter, find_base(adapter, model_folder), folder, _trained_dtype(settings))
        return "merged"
    _check_whole(source)
    folder.mkdir()
    for file in matching(source, _MODEL_FILES):
        shutil.copyfile(file, folder / file.name)
    if "auto_map" in json.loads((source / "config.json").read_text(encoding="utf-8")):  # the model's own code
        for file in matching(source, ("*.py",)):
            shutil.copyfile(file, folder / file.name)
    return "full"


def _check_whole(source: Path) -> None:
    """Refuse weights that are cut into pieces of processes, or not all there."""
    pieces = [each.name for pattern in _PIECES for each in source.glob(pattern) if each.is_dir()]
    files = [file.name for file in weight_files(source) if file.suffix == ".safetensors"]
    if pieces and not files:
        raise InputError(
            f"{source}: its weights are cut over the processes of the training ({pieces[0]}/)",
            "Let the run come to its end, where it writes the whole model (ascent train --resume RUN, with "
            "trainer.max_steps lowered if need be), or write whole checkpoints: FSDP_STATE_DICT_TYPE=FULL_STATE_DICT "
            "in the environment.",
        )
    if not files or not (source / "config.json").is_file():
        raise InputError(f"{source}: no whole model in it (config.json and *.safetensors)")
    for index in source.glob("*.safetensors.index.json"):
        mapping = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        absent = sorted(set(mapping.values()) - set(files))
        if absent:
            raise InputError(f"{source}: {absent[0]} is missing, which {index.name} names")


def _trained_dtype(settings: RunConfig) -> str:
    """The dtype of the weights in training, in which a full run is saved too."""
    given = (settings.trainer.get("model_init_kwargs") or {}).get("dtype")
    if given is not None:
        return str(given)
    return "float32" if settings.model.dtype == "auto" else settings.model.dtype
