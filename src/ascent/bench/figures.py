"""What was measured, as plain data, and as the JSON of `ascent bench` ("ascent.bench/1")."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ascent.bench.bound import Bound, StepCost
from ascent.rollout.engines.token_times import Latency

SCHEMA = "ascent.bench/1"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A workload, sampled once. `peak_bytes` is the most memory of the engine's process, `total_bytes` what its device
    has (on CPU the machine); None: not reported."""

    seconds: float
    kv_cache_use: float  # largest share of the cache in use, 0 to 1
    preemptions: int
    prefix_hit_rate: float
    first_token: Latency | None
    between_tokens: Latency | None
    peak_bytes: int
    total_bytes: int
    power_watts: float | None = None  # mean of the device


@dataclass(frozen=True, slots=True)
class Measured:
    """One stage. `settings` are the engine's that differ from the default stages'. Without repeats either `same_as`
    names a stage that is the same here, or `failed` says why it can't be measured."""

    stage: str
    settings: Mapping[str, Any]
    repeats: tuple[Repeat, ...] = ()
    start_seconds: float | None = None
    same_as: str | None = None
    failed: str | None = None

    @property
    def seconds(self) -> float:
        """The middle repeat's."""
        return statistics.median(each.seconds for each in self.repeats)

    @property
    def memory_share(self) -> float:
        """Largest share of the device's memory, 0 to 1."""
        return max(each.peak_bytes / each.total_bytes for each in self.repeats)

    def middle(self, name: str) -> Any:
        """The field of the repeat that took the middle time."""
        ordered = sorted(self.repeats, key=lambda each: each.seconds)
        return getattr(ordered[(len(ordered) - 1) // 2], name)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled: completions of `groups` prompts, with lengths fixed beforehand. Numbers of tokens."""

    source: str
    groups: int
    lengths: Sequence[int]
    prompt_tokens: int  # each completion's prompt counted

    @property
    def tokens(self) -> int:
        """Of all completions."""
        return sum(self.lengths)


@dataclass(frozen=True, slots=True)
class OfTheBound:
    """The dynamic stage beside what it can't be faster than."""

    bound: Bound
    cost: StepCost
    prompt_tokens: float  # computed, of all prompts' tokens
    reached: float  # bound / measured seconds: 1 is the bound itself


@dataclass(frozen=True, slots=True)
class Bench:
    """What `ascent bench` found out."""

    model: str
    device: str
    versions: Mapping[str, str]
    sampled: Sampled
    rows: int  # N
    stages: tuple[Measured, ...]
    of_the_bound: OfTheBound | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def good(self) -> bool:
        """Whether all that was asked for was measured."""
        return all(each.failed is None for each in self.stages)

    def measured(self, stage: str) -> Measured | None:
        """The figures of a stage, or of the one that is the same here; None where there are none."""
        by_name = {each.stage: each for each in self.stages}
        found = by_name.get(stage)
        if found is not None and found.same_as is not None:
            found = by_name[found.same_as]
        return found if found is not None and found.repeats else None

    def times(self, stage: str, other: str) -> float | None:
        """How many times as fast as another stage one is."""
        faster, slower = self.measured(stage), self.measured(other)
        return None if faster is None or slower is None else slower.seconds / faster.seconds

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device,
            "versions": dict(self.versions),
            "workload": {
                "source": self.sampled.source,
                "groups": self.sampled.groups,
                "completions": len(self.sampled.lengths),
                "tokens": self.sampled.tokens,
                "prompt_tokens": self.sampled.prompt_tokens,
                "lengths": spread(self.sampled.lengths),
            },
            "rows": self.rows,
            "stages": [self._stage_json(each) for each in self.stages],
            "bound": None if self.of_the_bound is None else _bound_json(self.of_the_bound),
            "notes": list(self.notes),
        }

    def _stage_json(self, found: Measured) -> dict[str, Any]:
        made: dict[str, Any] = {"stage": found.stage, "settings": dict(found.settings)}
        if found.failed is not None:
            return made | {"failed": found.failed}
        if found.same_as is not None:
            return made | {"same_as": found.same_as}
        return made | {
            "start_seconds": found.start_seconds,
            "seconds": [each.seconds for each in found.repeats],
            "sequences_per_second": len(self.sampled.lengths) / found.seconds,
            "tokens_per_second": self.sampled.tokens / found.seconds,
            "first_token": _latency_json(found.middle("first_token")),
            "between_tokens": _latency_json(found.middle("between_tokens")),
            "kv_cache_use": max(each.kv_cache_use for each in found.repeats),
            "preemptions": max(each.preemptions for each in found.repeats),
            "prefix_hit_rate": found.middle("prefix_hit_rate"),
            "memory": {
                "peak_bytes": max(each.peak_bytes for each in found.repeats),
                "total_bytes": found.middle("total_bytes"),
                "percent": 100 * found.memory_share,
            },
            "power_watts": mean_power(found),
        }


def mean_power(found: Measured) -> float | None:
    """Watts over all repeats in which the device reported them."""
    watts = [each.power_watts for each in found.repeats if each.power_watts is not None]
    return statistics.mean(watts) if watts else None


def spread(lengths: Sequence[int]) -> dict[str, int]:
    """How lengths lie: smallest, middle, 95 of 100 not above, largest."""
    ordered = sorted(lengths)
    return {
        "min": ordered[0],
        "median": ordered[(len(ordered) - 1) // 2],
        "p95": ordered[-(-95 * len(ordered) // 100) - 1],
        "max": ordered[-1],
    }


def _latency_json(found: Latency | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _bound_json(found: OfTheBound) -> dict[str, Any]:
    return {
        "seconds": found.bound.seconds,
        "in_order_seconds": found.bound.in_order,
        "step_seconds": {str(rows): seconds for rows, seconds in found.cost.steps.items()},
        "prompt_token_seconds": found.cost.prompt_token,
        "prompt_tokens_computed": found.prompt_tokens,
        "dynamic_reached": found.reached,
    }
