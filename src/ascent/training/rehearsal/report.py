"""What a rehearsal says, for a person and for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascent.alarms.rules.rule import percent
from ascent.memory.picture import size
from ascent.training.rehearsal.figures import PHASES, Lengths, Signal, Times
from ascent.training.rehearsal.judging import Concern
from ascent.training.rehearsal.samples import Sample
from ascent.training.trial.found import Worst

SCHEMA = "ascent.rehearsal/1"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """`folder` holds all that was sampled and measured. What could not be measured is None."""

    folder: Path
    steps: int
    device: str
    processes: int
    seconds: float
    signal: Signal
    lengths: Lengths | None
    worst: Worst | None
    times: Times | None
    samples: Sequence[Sample]
    concerns: Sequence[Concern]

    @property
    def good(self) -> bool:
        """Whether nothing speaks against starting the run as it is."""
        return all(concern.level != "critical" for concern in self.concerns)

    def to_text(self) -> str:
        """For a person."""
        parts = [self._head(), "\n".join(self._figures())]
        if self.samples:
            shown = "\n\n".join(sample.to_text(number) for number, sample in enumerate(self.samples, 1))
            parts.append(f"Samples to read (prompt >, completion |)\n\n{shown}")
        parts += [self._advice(), "As it is, the run can start." if self.good else "The run had better not start so."]
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "schema": SCHEMA,
            "good": self.good,
            "folder": str(self.folder),
            "steps": self.steps,
            "device": self.device,
            "processes": self.processes,
            "seconds": self.seconds,
            "signal": asdict(self.signal),
            "lengths": None if self.lengths is None else asdict(self.lengths),
            "worst_batch": None if self.worst is None else asdict(self.worst),
            "times": None if self.times is None else asdict(self.times),
            "samples": [asdict(sample) for sample in self.samples],
            "concerns": [asdict(concern) for concern in self.concerns],
        }

    def _head(self) -> str:
        whole = f" of {self.times.steps}" if self.times is not None and self.times.steps else ""
        on = f"{self.processes} x {self.device}" if self.processes > 1 else self.device
        return (
            f"Rehearsed {self.steps}{whole} steps in {duration(self.seconds)} on {on or 'this machine'}.\n"
            f"All that was sampled and measured is in {self.folder}"
        )

    def _figures(self) -> list[str]:
        lines = [f"Signal   {line}" if not at else f"         {line}" for at, line in enumerate(_signal(self.signal))]
        if self.lengths is not None:
            lines.append(f"Lengths  {_lengths(self.lengths)}")
        lines.append(f"Memory   {_memory(self.worst)}")
        if self.times is not None:
            lines += [f"Time     {line}" if not at else f"         {line}" for at, line in enumerate(_time(self.times))]
        return lines

    def _advice(self) -> str:
        if not self.concerns:
            return "What to change first\n  nothing that two minutes could show"
        lines = ["What to change first"]
        for concern in self.concerns:
            lines.append(f"- {concern.level}: {concern.what}")
            lines += [f"    {mend}" for mend in concern.mend]
        return "\n".join(lines)


def duration(seconds: float) -> str:
    """Seconds as people say them: `48 s`, `3 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _signal(signal: Signal) -> list[str]:
    if not signal.groups:
        return ["no group was sampled to its end"]
    share = f"{percent(signal.share)}; 95 %: {100 * signal.low:.0f} to {signal.high:.0%}"
    silent = f"{signal.silent} of {signal.groups} groups teach nothing ({share}): all their scores are alike"
    if signal.silent and signal.passed is not None:
        silent += f"; {signal.all_pass} of these pass as a whole"
    if signal.passed is None:
        return [silent]
    sampled = f"of {signal.completions} completions of {signal.passed.tasks} tasks"
    first = f"; before the first update {signal.passed_first}" if signal.passed_first is not None else ""
    return [f"{signal.passed} {sampled} pass all tests{first}", silent]


def _lengths(lengths: Lengths) -> str:
    needs = ""
    if lengths.needed is None:
        needs = "; none ended in the second half, so what they need can't be told"
    elif lengths.needed > lengths.allowed:
        needs = f"; about {lengths.needed} would hold 95 %"
    interval = f"95 %: {100 * lengths.low:.1f} to {100 * lengths.high:.1f} %"
    return (
        f"{lengths.mean:.0f} tokens on average, 95 % have at most {lengths.most:.0f}; "
        f"{percent(lengths.share)} are cut off at {lengths.allowed} ({interval}){needs}"
    )


def _memory(worst: Worst | None) -> str:
    if worst is None:
        return "the worst batch was not tried"
    batch = f"{worst.rows} sequences of {worst.prompt} + {worst.completion} tokens"
    if worst.state != "done":
        return f"{batch}, the worst batch: {'memory ran out' if worst.state == 'out of memory' else 'it did not end'}"
    off = f", planned {size(worst.planned)} ({worst.planned / worst.peak - 1:+.0%})" if worst.planned else ""
    return (
        f"the worst batch ({batch}) fits: its update took {size(worst.peak)}{off}; in all {size(worst.in_use)} of "
        f"{size(worst.usable)}"
    )


def _time(times: Times) -> list[str]:
    sure = f" ({times.low:.2f} to {times.high:.2f})" if times.timed > 1 else " (only one was timed)"
    shares = [f"{PHASES[name]} {seconds / times.step:.0%}" for name, seconds in times.phases.items() if seconds > 0]
    whole = duration(times.total)
    if times.timed > 1:
        whole += f" ({duration(times.total_low)} to {duration(times.total_high)})"
    evaluations = f", evaluations {duration(times.evaluations)}" if times.evaluations else ""
    return [
        f"a step takes {times.step:.2f} s{sure}: {', '.join(shares)}",
        f"the run's {times.steps} steps take about {whole}, with its start ({duration(times.start)}){evaluations}; "
        "checkpoints are not counted",
    ]
