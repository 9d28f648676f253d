"""What is done about a bad step, beside skipping it: it is explained, kept, and told."""

from __future__ import annotations

from typing import Any

from ascent.training.numerics.explaining import explain
from ascent.training.numerics.guard import norm_of


def treat(trainer: Any, model: Any, norm: Any) -> None:
    """The step that a GRPOTrainer is in was refused: say why on stderr (rank 0), and keep it. Collective."""
    numerics, value = trainer._numerics, norm_of(norm)
    guard = numerics.guard
    finding = explain(trainer, model)
    made = trainer.state.global_step + 1 - guard.bad_steps - guard.overflows
    folder = numerics.kept.keep(trainer, finding, value, made)
    if not trainer.accelerator.is_main_process:
        return
    step = trainer.state.global_step + 1
    lines = [
        f"step {step} was skipped: the gradient's norm is {value} (bad steps in a row: {guard.in_a_row}; "
        f"{guard.most} end the run)",
        *finding.text().splitlines(),
    ]
    if folder is not None:
        lines.append(f"kept in {folder}; repeat it with: ascent replay {folder.parent.parent} {step}")
    numerics.tell("\n  ".join(lines))
