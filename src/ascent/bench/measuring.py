"""Measures stages: one engine at a time, in a process of its own, and its stages in turns (A B A B) after a warm-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

from ascent.bench.bound import StepCost, bound
from ascent.bench.figures import Measured, OfTheBound, Repeat
from ascent.bench.power import PowerMeter, Watts
from ascent.bench.stages import Stage
from ascent.rollout.engine import EngineSettings
from ascent.tuning.probe import Group, Probe, TrialError
from ascent.tuning.probe import Measured as Probed
from ascent.tuning.workload import Workload
from ascent.types import Sampling

_LEAST_PATIENCE = 120.0  # seconds that an answer is waited for at least
_PATIENCE = 20  # times as long as the warm-up took


class Child(Protocol):
    """A process that holds one engine (`tuning.trial.EngineChild`)."""

    def open(self, settings: EngineSettings, seconds: float = ...) -> float:
        """Build the engine; seconds that it took."""
        ...

    def probe(self, probe: Probe, seconds: float = ...) -> Probed:
        """Sample."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *told: Any) -> None: ...


NewChild = Callable[[Mapping[str, str]], AbstractContextManager[Child]]  # with these variables


@dataclass(frozen=True, slots=True)
class Conditions:
    """How everything is measured: the completions, how they are drawn, how often each stage, and what tells power."""

    workload: Workload
    sampling: Sampling
    seeded: bool
    repeats: int
    watts: Watts | None = None


def measure(
    stages: Sequence[Stage], conditions: Conditions, new_child: NewChild, say: Callable[[str], None]
) -> tuple[list[Measured], OfTheBound | None]:
    """The figures of each stage, in order, and how near the dynamic one comes to its bound, where it was measured.

    An engine that doesn't start or ends is the failure of its stages; the others are measured all the same.
    """
    first = stages[0].settings
    found: dict[str, Measured] = {}
    of_the_bound = None
    for place, stage in enumerate(stages):
        if (earlier := next((each for each in stages[:place] if each.like(stage)), None)) is not None:
            found[stage.name] = Measured(stage.name, _changed(first, stage.settings), same_as=earlier.name)
    for settings, environment in dict.fromkeys((stage.settings, stage.environment) for stage in stages):
        sharing = [
            stage
            for stage in stages
            if (stage.settings, stage.environment) == (settings, environment) and stage.name not in found
        ]
        changed = _changed(first, settings) | dict(environment)
        try:
            with new_child(dict(environment)) as child:
                seconds, repeats, near = _on_one_engine(child, sharing, conditions, say)
        except TrialError as error:
            say(f"{', '.join(stage.name for stage in sharing)}: {error}")
            found |= {stage.name: Measured(stage.name, changed, failed=str(error)) for stage in sharing}
            continue
        of_the_bound = near or of_the_bound
        for stage in sharing:
            found[stage.name] = Measured(stage.name, changed, tuple(repeats[stage.name]), seconds)
    return [found[stage.name] for stage in stages], of_the_bound


def _on_one_engine(
    child: Child, stages: Sequence[Stage], conditions: Conditions, say: Callable[[str], None]
) -> tuple[float, Mapping[str, list[Repeat]], OfTheBound | None]:
    """Seconds of the engine's start, the repeats by stage, and the bound if the dynamic stage is among them."""
    names = ", ".join(stage.name for stage in stages)
    say(f"{names}: starting the engine")
    seconds = child.open(stages[0].settings)
    warm = child.probe(_probe(conditions, conditions.workload.groups))
    patience = max(_LEAST_PATIENCE, _PATIENCE * warm.seconds)
    repeats: dict[str, list[Repeat]] = {stage.name: [] for stage in stages}
    for number in range(conditions.repeats):
        for stage in stages:
            probe = _probe(conditions, _groups(conditions.workload, stage), stage.at_once)
            with PowerMeter(conditions.watts) as meter:
                probed = child.probe(probe, patience)
            repeats[stage.name].append(_repeat(probed, meter.mean))
            rate = conditions.workload.tokens / probed.seconds
            say(f"{stage.name} {number + 1}/{conditions.repeats}: {probed.seconds:.2f} s, {rate:.0f} tokens/s")
    dynamic = next((stage for stage in stages if stage.name == "dynamic"), None)
    near = None if dynamic is None else _near_the_bound(child, dynamic, conditions, repeats["dynamic"], patience)
    return seconds, repeats, near


def _near_the_bound(
    child: Child, stage: Stage, conditions: Conditions, repeats: Sequence[Repeat], patience: float
) -> OfTheBound:
    """Measures what a step costs, with completions of one length: as long as makes the mean context of a token that of
    the workload."""
    lengths = all_lengths(conditions.workload)
    rows = min(stage.settings.max_num_seqs, len(lengths))
    length = max(2, round(sum(each * each for each in lengths) / sum(lengths)))
    steps: dict[int, float] = {}
    prompt_token: list[float] = []
    for at_once in _doubling(rows):
        probed = child.probe(_probe(conditions, _uniform(conditions.workload, at_once, length)), patience)
        assert probed.first_token is not None  # vLLM tells both of completions of two tokens
        assert probed.between_tokens is not None
        steps[at_once] = probed.between_tokens.median
        computed = probed.prompt_tokens * (1 - probed.stats.prefix_hit_rate)
        prompt_token.append(max(0.0, probed.first_token.median - probed.between_tokens.median) / max(computed, 1.0))
    middle = sorted(repeats, key=lambda each: each.seconds)[(len(repeats) - 1) // 2]
    prompts = prompt_tokens(conditions.workload) * (1 - middle.prefix_hit_rate)
    cost = StepCost(steps, min(prompt_token))  # a bound counts the cheapest
    least = bound(lengths, prompts, cost, rows)
    return OfTheBound(least, cost, prompts, least.seconds / middle.seconds)


def all_lengths(workload: Workload) -> tuple[int, ...]:
    """Of the completions, in the order in which they are submitted."""
    return tuple(length for group in workload.groups for length in group.lengths)


def prompt_tokens(workload: Workload) -> int:
    """Of all completions, each with its prompt."""
    return sum(len(group.prompt_ids) * len(group.lengths) for group in workload.groups)


def _doubling(most: int) -> Iterator[int]:
    rows = 1
    while rows < most:
        yield rows
        rows *= 2
    yield most


def _uniform(workload: Workload, rows: int, length: int) -> tuple[Group, ...]:
    """So many completions of one length, of as many of the prompts as there are."""
    prompts = [group.prompt_ids for group in workload.groups[:rows]]
    return tuple(
        Group(prompt, (length,) * len(range(place, rows, len(prompts)))) for place, prompt in enumerate(prompts)
    )


def _groups(workload: Workload, stage: Stage) -> tuple[Group, ...]:
    """The workload's, or with padding: each completion as long as the longest of its batch."""
    if not stage.padded:
        return workload.groups
    assert stage.at_once is not None
    lengths = all_lengths(workload)
    firsts = range(0, len(lengths), stage.at_once)
    padded = [max(lengths[first : first + stage.at_once]) for first in firsts for _ in range(stage.at_once)]
    rest = iter(padded)
    return tuple(replace(group, lengths=tuple(next(rest) for _ in group.lengths)) for group in workload.groups)


def _probe(conditions: Conditions, groups: tuple[Group, ...], at_once: int | None = None) -> Probe:
    return Probe(groups, conditions.sampling, at_once=at_once, seeded=conditions.seeded)


def _repeat(probed: Probed, watts: float | None) -> Repeat:
    return Repeat(
        seconds=probed.seconds,
        kv_cache_use=probed.stats.kv_cache_use,
        preemptions=probed.stats.preemptions,
        prefix_hit_rate=probed.stats.prefix_hit_rate,
        first_token=probed.first_token,
        between_tokens=probed.between_tokens,
        peak_bytes=probed.peak_bytes,
        total_bytes=probed.total_bytes,
        power_watts=probed.power_watts if watts is None else watts,
    )


def _changed(first: EngineSettings, settings: EngineSettings) -> dict[str, Any]:
    before, after = asdict(first), asdict(settings)
    return {name: value for name, value in after.items() if value != before[name]}
