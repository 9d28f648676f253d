"""Writes a bad step into the run directory: every rank its passes, rank 0 what was found, all together the weights."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ascent.compat.fsdp_model import save_whole_model
from ascent.tracking.run_directory import write_json
from ascent.training.numerics.finding import Finding
from ascent.training.numerics.kept_step import MODEL, STEP_FILE, save_passes

_PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "torch-npu")
MOST = 10  # a training keeps no more
_SECRET = ("token", "password", "secret")


class BadSteps:
    """The folder of a training's bad steps."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        """`tell` takes a sentence where one can't be kept: the training goes on."""
        self.folder, self._tell = folder, tell
        self._kept = 0
        self._weights: tuple[int, int] | None = None  # bad step that has a model, optimizer steps made by then

    def keep(self, trainer: Any, finding: Finding, norm: float, steps_made: int) -> Path | None:
        """Write the step that the trainer is in; its folder, None where there are `MOST` already, or the disk didn't
        take it. `steps_made` counts the good steps: what weights there are. Collective."""
        if self._kept == MOST:
            return None
        step, ranks = trainer.state.global_step + 1, trainer.agreement.ranks
        folder, beside = self.folder / str(step), self.folder / f".{step}.tmp"
        with_model = self._weights is None
        made_before = self._weights is not None and self._weights[1] == steps_made
        weights = str(step) if with_model else str(self._weights[0]) if self._weights and made_before else None

        def begin() -> None:
            if ranks.rank == 0:
                shutil.rmtree(beside, ignore_errors=True)
                beside.mkdir(parents=True)

        def write() -> None:
            save_passes(beside / f"rank{ranks.rank}.safetensors", trainer._numerics.passes.all)
            if ranks.rank == 0:
                write_json(beside / STEP_FILE, {**_about(trainer, finding, norm), "weights": weights})

        def write_model() -> None:
            if with_model:
                save_whole_model(trainer.accelerator)
                trainer.save_model(str(beside / MODEL), _internal_call=True)

        def end() -> None:
            if ranks.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)  # of a start before the one that is resumed
                os.replace(beside, folder)

        for act in (begin, write, write_model, end):  # all ranks go on to the next, or none
            problem = next((each for each in ranks.exchange(_problem_of(act)) if each), None)
            if problem is not None:
                if ranks.rank == 0:
                    shutil.rmtree(beside, ignore_errors=True)
                self._tell(f"note: the bad step could not be kept in {folder}: {problem}")
                return None
        if with_model:
            self._weights = step, steps_made
        self._kept += 1
        return folder


def _problem_of(act: Callable[[], None]) -> str | None:
    """What the disk did not take, if anything."""
    try:
        act()
    except (OSError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _about(trainer: Any, finding: Finding, norm: float) -> dict[str, Any]:
    args, accelerator = trainer.args, trainer.accelerator
    settings = {
        name: value
        for name, value in args.to_dict().items()
        if not any(word in name for word in _SECRET) and isinstance(value, (bool, int, float, str, type(None), dict))
    }
    return {
        "schema": "ascent.bad_step/1",
        "step": trainer.state.global_step + 1,
        "generation": trainer.generation - 1,
        "gradient_norm": str(norm),
        "finding": finding.to_json(),
        "processes": accelerator.num_processes,
        "micro_batches": trainer.current_gradient_accumulation_steps,
        "mixed_precision": accelerator.mixed_precision,
        "loss_scale": None if accelerator.scaler is None else accelerator.scaler.get_scale(),
        "entropy_bonus": trainer._numerics.passes.entropy_bonus,
        "dtype": str(next(trainer.model.parameters()).dtype).removeprefix("torch."),
        "algorithm": trainer._algorithm.name,
        "packages": {name: _version(name) for name in _PACKAGES},
        "settings": settings,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
