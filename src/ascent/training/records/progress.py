"""What a person sees while a run trains: a bar on a terminal, a line a step elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ascent.training.records.recorder import StepRecord


def step_line(record: StepRecord) -> str:
    """One step in one line: reward, pass rate, completion length, seconds and where they went."""
    metrics, times = record.metrics, record.times
    parts = [
        f"reward {_figure(metrics.get('reward'), '.3f')}",
        f"pass {_figure(metrics.get('pass_rate'), '.0%')}",
        f"length {_figure(metrics.get('completions/mean_length'), '.0f')}",
        f"loss {_figure(metrics.get('loss'), '.4f')}",
        f"{times.step:.1f} s (sampling {times.generate:.1f}, reward {times.reward_exposed:.1f}, "
        f"log-probs {times.logps:.1f}, update {times.update:.1f}, sync {times.sync:.1f})",
    ]
    if metrics.get("numerics/bad_step"):
        parts.insert(4, f"not made: its gradient's norm is {_figure(metrics.get('grad_norm'), '.3g')}")
    return "  ".join(parts)


class StepProgress:
    """Shows steps as they end, and how far sampling is in between. `with StepProgress(...) as progress:`."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)
        self._last_shown = 0.0

    def sampled(self, done: int, total: int) -> None:
        """`done` of `total` completions of this generation are there."""
        now = time.monotonic()
        if done == total or now - self._last_shown > 0.2:
            self._last_shown = now
            self._bar.update(self._task, description=f"sampled {done}/{total}")

    def step(self, record: StepRecord) -> None:
        """A step has ended."""
        self._bar.update(self._task, completed=record.step, total=record.total_steps, description="")
        line = f"step {record.step}/{record.total_steps}  {step_line(record)}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def __enter__(self) -> StepProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
