"""How much of each step is communication: seconds by kind, and their share."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ascent.training.step.collectives import Collectives, DdpTimer


class Communication(TrainerCallback):
    """This process's `communication/...` figures, while it trains. Costs a fifth of a millisecond a step, and a few
    microseconds a collective."""

    def __init__(self, processes: int) -> None:
        self._several = processes > 1
        self._collectives, self._ddp = Collectives(), DdpTimer()
        self._sent = 0.0  # seconds of weights that earlier steps have told

    def on_train_begin(self, *args: Any, **keywords: Any) -> None:
        """Listen."""
        if self._several:
            self._collectives.listen()

    def on_train_end(self, *args: Any, **keywords: Any) -> None:
        """Listen no more."""
        self._collectives.stop()

    def finish_step(self, trainer: Any, seconds: float) -> dict[str, float]:
        """The figures of the step that has ended, which took so many seconds. Empty where one process trains and
        samples by itself."""
        found: dict[str, float] = {}
        exposed = 0.0
        if self._several:
            gradients = self._ddp.take(trainer.model_wrapped)
            timed = self._collectives.take()
            exposed = timed["gradients"] + (gradients.exposed if gradients else 0.0)
            found = {
                "communication/gradients": timed["gradients"] + (gradients.whole if gradients else 0.0),
                "communication/gradients_exposed": exposed,
                "communication/gathers": timed["gathers"],
            }
        sent: float | None = getattr(trainer.engine, "weights_seconds", None)
        if sent is not None:
            found["communication/weights"], self._sent = sent - self._sent, sent
        if found:
            waited = exposed + found.get("communication/gathers", 0.0) + found.get("communication/weights", 0.0)
            found["communication/share"] = min(1.0, waited / seconds) if seconds > 0 else 0.0
        return found
