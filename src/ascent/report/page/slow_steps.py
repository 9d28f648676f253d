"""Why a step took as long as it did: its phases beside those of other steps, and what was unusual in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ascent.report.page.run_files import figure, whole

PHASES = {
    "generate": "sampling",
    "reward_exposed": "waiting for rewards",
    "logps": "log-probabilities",
    "update": "update",
    "sync": "weights to the engine",
    "other": "other",
}
# what else may explain a slow step: (figure, how it is called, share of the median from which it is unusual)
_WITNESSES = (
    (("completions/mean_length",), "mean length of a completion, tokens"),
    (("completions/max_length",), "longest completion, tokens"),
    (("engine", "tokens_per_second"), "sampled tokens a second"),
    (("engine", "preemptions"), "preemptions"),
    (("engine", "waiting"), "sequences waiting, most at once"),
    (("engine", "latency_p95"), "latency of a completion, 95th percentile, s"),
    (("engine", "kv_cache_use"), "KV cache in use"),
    (("times", "reward_total"), "time in the sandbox, s"),
    (("shapes/new",), "shapes not seen before"),
    (("communication/share",), "share of the step in communication"),
    (("sampling/groups_drawn",), "groups drawn"),
    (("signals/timeouts",), "programs out of time"),
    (("batch/passes",), "forward passes"),
)
_UNUSUAL = 1.5


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of a step beside the median of all others; both None where nothing was recorded."""

    name: str
    value: float | None
    usual: float | None

    @property
    def ratio(self) -> float | None:
        """How many times the usual value; None where that can't be said."""
        return self.value / self.usual if self.value is not None and self.usual else None

    @property
    def unusual(self) -> bool:
        """Whether it is far from usual, up or down; a count that is usually 0 is unusual when it isn't."""
        if self.value is None or self.usual is None:
            return False
        if not self.usual:
            return self.value > 0
        return not 1 / _UNUSUAL < self.value / self.usual < _UNUSUAL


@dataclass(frozen=True, slots=True)
class StepReading:
    """A step's seconds and phases (in order of what they cost beyond the usual), and other figures."""

    step: Mapping[str, Any]
    seconds: Compared
    phases: Sequence[Compared]
    witnesses: Sequence[Compared]

    @property
    def slow(self) -> bool:
        """Whether the step took clearly longer than usual."""
        return self.seconds.ratio is not None and self.seconds.ratio >= _UNUSUAL

    @property
    def culprit(self) -> Compared | None:
        """The phase that cost most beyond the usual, where the step is slow."""
        return self.phases[0] if self.slow and self.phases else None


def read_step(steps: Sequence[Mapping[str, Any]], wanted: int) -> StepReading | None:
    """The step of that number beside all others; None where the run has no such line."""
    step = next((line for line in reversed(steps) if whole(line["step"]) == wanted), None)
    if step is None:
        return None
    others = [line for line in steps if line is not step] or [step]
    phases = [_compared(name, step, others, "times", key) for key, name in PHASES.items()]
    phases.sort(key=lambda phase: (phase.usual or 0.0) - (phase.value or 0.0))
    witnesses = [_compared(name, step, others, *path) for path, name in _WITNESSES]
    return StepReading(
        step,
        _compared("step", step, others, "times", "step"),
        phases,
        [witness for witness in witnesses if witness.value is not None],
    )


def slowest(steps: Sequence[Mapping[str, Any]], most: int = 8) -> list[Compared]:
    """The steps that took longest, by number, beside the median of all."""
    timed = [(seconds, whole(line["step"])) for line in steps if (seconds := figure(line, "times", "step")) is not None]
    if not timed:
        return []
    usual = median(seconds for seconds, _ in timed)
    return [Compared(str(step), seconds, usual) for seconds, step in sorted(timed, reverse=True)[:most]]


def _compared(name: str, step: Mapping[str, Any], others: Sequence[Mapping[str, Any]], *path: str) -> Compared:
    usual = [value for line in others if (value := figure(line, *path)) is not None]
    return Compared(name, figure(step, *path), median(usual) if usual else None)
