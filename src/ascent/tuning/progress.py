"""What a person sees while settings are tried: a bar on a terminal, a line a probe elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ascent.tuning.search import Step


class TuneProgress:
    """How much of the budget is spent, what is being tried, and the best so far. `budget` is in seconds."""

    def __init__(self, budget: float) -> None:
        self._console = Console(file=sys.stderr)
        self._bar = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=budget)

    def step(self, step: Step) -> None:
        """A probe begins."""
        best = "" if step.best is None else f"; best so far {step.best:,.0f} tokens/s: {step.best_settings}"
        self._bar.update(self._task, completed=step.spent, description=f"trying {step.what}{best}")
        if not self._console.is_terminal:
            self.say(f"{step.spent:5.0f} s  trying {step.what}{best}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
