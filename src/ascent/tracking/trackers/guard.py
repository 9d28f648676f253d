"""A tracker can't disturb a training: what it raises is told once, what it can't take is left out.

`guard` puts a `Guarded` in the place of each of transformers' callbacks for the trackers of `names`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from ascent.compat.swanlab_run import begin_run
from ascent.tracking.rollouts import RolloutRecord
from ascent.tracking.trackers.ids import keep_id
from ascent.tracking.trackers.names import Known
from ascent.tracking.trackers.places import PROJECT, keep_tables_beside
from ascent.tracking.trackers.samples import LOG_TABLE, rows_of

_GIVEN_UP_AFTER = 3  # failures in a row
_EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))

_NAMED: Mapping[str, Callable[[Any, Any], dict[str, str]]] = {  # (callback, TrainingArguments) -> trackers.json's entry
    "tensorboard": lambda callback, args: {"folder": str(callback.logging_dir)},
    "trackio": lambda callback, args: {"project": str(args.project), "name": str(args.run_name)},
    "swanlab": lambda callback, args: {"run_id": str(callback._swanlab.get_run().id)},
    "wandb": lambda callback, args: {"run_id": str(callback._wandb.run.id)},
    "mlflow": lambda callback, args: {"run_id": str(callback._ml_flow.active_run().info.run_id)},
}


@dataclass(frozen=True, slots=True)
class Beside:
    """What guards share: the file `trackers.json`, the completions of the last generation that are shown, and who takes
    a sentence to the user."""

    ids: Path
    evidence: Callable[[], Sequence[RolloutRecord]]
    tell: Callable[[str], None]


class Guarded(TrainerCallback):
    """One tracker: `inner` is transformers' callback for it. The methods of TrainerCallback are added below."""

    def __init__(self, inner: Any, name: str, beside: Beside) -> None:
        self.inner, self.name = inner, name
        self._beside, self._failures, self._told = beside, 0, False
        self._shown = ""  # the first sample of the last table

    def call(self, event: str, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Hand an event on, and what belongs to it; no error comes back."""
        if self._failures >= _GIVEN_UP_AFTER:
            return
        begins, logs = event == "on_train_begin" and state.is_world_process_zero, event == "on_log"
        if logs:
            keywords["logs"] = {name: value for name, value in keywords["logs"].items() if value is not None}
        if begins and self.name == "mlflow":
            self._attempt(event, lambda: keep_tables_beside(self.inner._ml_flow, self._beside.ids.parent))
        if begins and self.name == "swanlab":
            self._attempt(event, lambda: begin_run(self.inner._swanlab, PROJECT, str(args.run_name)))
        if not self._attempt(event, lambda: getattr(self.inner, event)(args, state, control, **keywords)):
            self._failures += _GIVEN_UP_AFTER if event == "on_train_begin" else 1
        elif begins:
            self._attempt(event, lambda: keep_id(self._beside.ids, self.name, _NAMED[self.name](self.inner, args)))
        elif logs:
            self._failures = 0
            if state.is_world_process_zero:
                self._attempt("samples", lambda: self._show_samples(state.global_step))

    def _attempt(self, what: str, do: Callable[[], object]) -> bool:
        """Whether it went well; otherwise that is told, once."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the training goes on
            if not self._told:
                self._told = True
                what = f"{what}: {type(error).__name__}: {error}"
                self._beside.tell(
                    f"note: the tracker {self.name} failed ({what}). The training goes on, and metrics.jsonl has it all"
                )
            return False
        return True

    def _show_samples(self, step: int) -> None:
        records = self._beside.evidence()
        if records and records[0].sample_id != self._shown:
            self._shown = records[0].sample_id
            LOG_TABLE[self.name](self.inner, step, rows_of(records))


def _forwarded(event: str) -> Callable[..., None]:
    def forward(self: Guarded, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        self.call(event, args, state, control, **keywords)

    forward.__name__ = event
    return forward


for _event in _EVENTS:
    setattr(Guarded, _event, _forwarded(_event))


def guard_trackers(trainer: Any, trackers: Sequence[Known], beside: Beside) -> None:
    """Guard those of a Trainer. They leave its `args.report_to`, by which TRL would write to some of them itself, where
    nobody guards it."""
    guard(trainer.callback_handler.callbacks, trackers, beside)
    names = {known.name for known in trackers}
    trainer.args.report_to = [name for name in trainer.args.report_to if name not in names]


def has_trackers(trainer: Any) -> bool:
    """Whether a Trainer tells trackers, guarded or not."""
    return bool(trainer.args.report_to) or any(isinstance(each, Guarded) for each in trainer.callback_handler.callbacks)


def guard(callbacks: list[Any], trackers: Sequence[Known], beside: Beside) -> None:
    """Replace the callbacks of trackers in a Trainer's list."""
    kinds = {INTEGRATION_TO_CALLBACK[known.name]: known.name for known in trackers}
    callbacks[:] = [Guarded(each, kinds[type(each)], beside) if type(each) in kinds else each for each in callbacks]
