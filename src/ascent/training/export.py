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
from ascent.models.digests import TOKENIZER_FILES, matching
from ascent.models.folder import model_folder
from ascent.models.merging import merge
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.provenance import Kind, provenance, write_provenance
from ascent.training.run_weights import check_whole, checkpoint_weights, ended_with

_MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES)


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
    source, step = ended_with(run) if checkpoint is None else (None, checkpoint)
    end = source is not None
    if source is None:
        source = checkpoint_weights(run, checkpoint)
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


def _write_weights(source: Path, folder: Path, settings: RunConfig) -> Kind:
    if is_adapter(source):
        adapter = read_adapter(source)
        merge(adapter, find_base(adapter, model_folder), folder, _trained_dtype(settings))
        return "merged"
    check_whole(source)
    folder.mkdir()
    for file in matching(source, _MODEL_FILES):
        shutil.copyfile(file, folder / file.name)
    if "auto_map" in json.loads((source / "config.json").read_text(encoding="utf-8")):  # the model's own code
        for file in matching(source, ("*.py",)):
            shutil.copyfile(file, folder / file.name)
    return "full"


def _trained_dtype(settings: RunConfig) -> str:
    """The dtype of the weights in training, in which a full run is saved too."""
    given = (settings.trainer.get("model_init_kwargs") or {}).get("dtype")
    if given is not None:
        return str(given)
    return "float32" if settings.model.dtype == "auto" else settings.model.dtype
