"""A trainer whose checkpoints resume to the same run, from the middle of a generation too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent.compat.cpu_index import accept_cpu_index
from ascent.tracking.run_directory import STATE_FILE, RunState, read_state
from ascent.training.batches.drawing.refill import Refill
from ascent.training.batches.drawing.state import RefillState
from ascent.training.checkpoint import buffered, drawn, sampled_ahead
from ascent.training.checkpoint.saving import saving
from ascent.training.records.evaluations import Evaluations
from ascent.training.records.generations import Generations
from ascent.training.step.agreement import Agreement
from ascent.training.step.sampler import Sampler, print_on_stderr
from ascent.training.updating import Updating


class Checkpointing(Updating):
    """A checkpoint is of the resume point: the last whole optimizer step, which may lie within a generation. What feeds
    steps beyond it is saved as well, and what a resume needs of that is restored."""

    agreement: Agreement
    _evaluations: Evaluations
    _kept: Generations
    _sampler: Sampler
    _refill: Refill | None
    _looks_ahead: bool
    _generation: int
    _recorded_step: int
    _saved_step: int
    _buffered_inputs: Any  # the slices of a generation that are still to be trained on; None before the first
    _resume_point: RunState
    _resume_slices: list[buffered.Slice] | None  # what the resume point's generation is made of
    _resume_refill: RefillState | None

    def _step_is_whole(self) -> None:
        """An optimizer step has ended: checkpoints are of it from now on."""
        self._recorded_step = self.state.global_step
        self._resume_point = RunState(self._generation, self._step, self.state.global_step)
        self._resume_slices = self._buffered_inputs if self._step % self._generate_every else None
        self._resume_refill = self._refill.state if self._refill is not None else None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        state = replace(self._resume_point, evaluations=self._evaluations.done)
        with saving(folder, state, self.args, self.state, self.accelerator.wait_for_everyone):
            if self._looks_ahead and (ahead := self._sampler.finish_ahead()):
                sampled_ahead.save(folder, self.args.process_index, ahead)
            if self._resume_slices is not None and not self._plain:
                buffered.save(folder, self._resume_slices, self.args)
            drawn.save(folder, self._refill, self._resume_refill)
            super()._save_checkpoint(model, trial)
        self._saved_step = self.state.global_step

    def save_last_step(self) -> int:
        """Write a checkpoint of the last whole step, in the middle of one that can't be finished, unless there is one;
        its number (0: there is none). Collective."""
        self._kept.release(None)
        if not self._plain:
            self._sampler.forget_ahead()
        if self.state.global_step not in {0, self._saved_step}:
            self._save_checkpoint(self.model, trial=None)
        return self.state.global_step

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        accept_cpu_index()
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / STATE_FILE).is_file():
            state = self._resume_point = read_state(Path(checkpoint))
            self._generation, self._step, self._recorded_step = state.generation, state.micro_step, state.step
            self._saved_step, self._evaluations.done = state.step, max(state.evaluations, self._evaluations.done)
            if not self._plain:
                ranks = self.agreement.ranks
                self._resume_refill = drawn.load(Path(checkpoint), self._refill, tell=print_on_stderr)
                self._sampler.keep(sampled_ahead.load(Path(checkpoint), ranks.rank))
                if state.micro_step % self._generate_every:
                    self._resume_slices = buffered.load(Path(checkpoint), self.args, ranks, tell=print_on_stderr)
                    self._buffered_inputs = self._resume_slices
