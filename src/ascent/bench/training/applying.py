"""A change tried: short runs with it and without, in turns, A B A B."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ascent.bench.training.changes import Change
from ascent.bench.training.measured import Measured
from ascent.bench.training.ratio import Ratio, ratio
from ascent.config import RunConfig
from ascent.errors import InputError

Measure = Callable[[RunConfig], Measured]
_TURNS = 2  # of both


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of a change. `faster` is how many times faster a step is with it, over steps of the same number in
    each turn; None where the training didn't run with it, and `failed` says why. `before` and `after` are the mean
    steps of each turn, in seconds."""

    change: Change
    faster: Ratio | None
    before: tuple[float, ...]
    after: tuple[float, ...]
    failed: str = ""

    @property
    def verdict(self) -> Literal["faster", "slower", "no difference", "failed"]:
        """What four runs show: a difference only where its interval leaves out 1."""
        if self.faster is None:
            return "failed"
        if self.faster.low > 1.0:
            return "faster"
        return "slower" if self.faster.high < 1.0 else "no difference"


def apply(config: RunConfig, change: Change, first: Measured, measure: Measure, say: Callable[[str], None]) -> Applied:
    """Measure the change against what it changes; `first` is the run without it that was measured already."""
    changed = with_settings(config, change.settings)
    before, after = [first], []
    for turn in range(_TURNS):
        if turn:
            say(f"without it again ({2 * turn + 1} of {2 * _TURNS})")
            before.append(measure(config))
        say(f"with {change.words} ({2 * turn + 2} of {2 * _TURNS})")
        try:
            after.append(measure(changed))
        except InputError as error:
            return Applied(change, None, _steps(before), _steps(after), failed=error.message)
    pairs = [
        seconds / theirs.step_seconds[step]
        for ours, theirs in zip(before, after, strict=True)
        for step, seconds in ours.step_seconds.items()
        if step in theirs.step_seconds
    ]
    return Applied(change, ratio(pairs), _steps(before), _steps(after))


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The configuration with settings by their keys (`section.name`). Raises InputError for what can't be together."""
    values = config.model_dump()
    for key, value in settings.items():
        section, _, name = key.partition(".")
        values[section] = {**values[section], name: value}
    try:
        return RunConfig.model_validate(values)
    except ValueError as error:
        raise InputError(f"{', '.join(settings)}: {error}") from error


def fragment(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings as a part of a configuration file."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        found.setdefault(section, {})[name] = value
    return found


def _steps(runs: list[Measured]) -> tuple[float, ...]:
    return tuple(each.step for each in runs)
