"""Which weights a run has to give: those that it ended with, or those of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from ascent.errors import InputError
from ascent.models.adapter_base import EXPORT_FILE
from ascent.models.digests import weight_files
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory

_PIECES = ("pytorch_model_fsdp*", "global_step*")  # of FSDP and of DeepSpeed


def ended_with(run: RunDirectory) -> tuple[Path | None, int]:
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


def checkpoint_weights(run: RunDirectory, number: int | None) -> Path:
    """The folder of a complete checkpoint: of step `number`, or the last one. Raises InputError when it isn't there, or
    isn't complete."""
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


def check_whole(source: Path) -> None:
    """Raise InputError for weights that are cut into pieces of processes, or not all there."""
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
