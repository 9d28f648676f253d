"""What is asked of an engine that is tried, and what it answers: plain data, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ascent.memory.cards import Card, Kind
from ascent.rollout.engines.token_times import Latency
from ascent.types import EngineStats, Sampling

# refused: vLLM or the machine doesn't allow the settings; crash: the process ended; hang: no answer in time
Why = Literal["refused", "memory", "crash", "hang"]


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt, and the lengths of its completions in tokens."""

    prompt_ids: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine may compute at once: at most what it was built for."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Probe:
    """One generation that an engine is measured by.

    Completions have exactly their lengths, whatever the policy would say; with `natural` they end as the policy ends
    them, at `stop_token_ids` of `sampling`, and lengths are the most that they may have. All are submitted at once, or
    with `at_once` so many at a time, each time when all before have ended. After `until` seconds it is broken off.
    `seeded`: each completion draws from a seed of its own. `steps`: time every step of the engine.
    """

    groups: tuple[Group, ...]
    sampling: Sampling = field(default_factory=lambda: Sampling(None))  # its max_tokens are the lengths
    natural: bool = False
    at_once: int | None = None
    limits: Limits | None = None
    until: float | None = None
    seeded: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What a probe gave. `tokens` are those of completions; with `cut` it was broken off, and what was sampled until
    then counts. `lengths` are in the order of the groups; `steps` are (sequences that ran, seconds). Bytes are those of
    memory: the most that the probe took, the engine included, and all that there is. Seconds of `first_token` are since
    a completion's submission, those of `between_tokens` of a step; None where there were none."""

    seconds: float
    sequences: int
    tokens: int
    prompt_tokens: int
    cut: bool = False
    lengths: tuple[tuple[int, ...], ...] = ()
    steps: tuple[tuple[int, float], ...] = ()
    stats: EngineStats = field(default_factory=EngineStats)
    peak_bytes: int = 0
    total_bytes: int = 0
    power_watts: float | None = None
    first_token: Latency | None = None
    between_tokens: Latency | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of completions."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What engines run on here: vLLM's platform, how many devices of it, cores that this process may use, and the
    device's memory."""

    kind: Kind
    devices: int
    cores: int
    card: Card


class TrialError(Exception):
    """An engine that can't be started, or has ended: an answer like any other. `text` says what was seen."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(f"{why}: {text}")
        self.why: Why = why
        self.text = text


def probe_to_json(probe: Probe) -> dict[str, Any]:
    """A line of the child's protocol."""
    sampling = {name: getattr(probe.sampling, name) for name in _SAMPLING}
    return {
        "do": "probe",
        "groups": [[list(group.prompt_ids), list(group.lengths)] for group in probe.groups],
        "sampling": sampling,
        "natural": probe.natural,
        "at_once": probe.at_once,
        "limits": {} if probe.limits is None else {name: getattr(probe.limits, name) for name in Limits.__slots__},
        "until": probe.until,
        "seeded": probe.seeded,
        "steps": probe.steps,
    }


def probe_from_json(line: Mapping[str, Any]) -> Probe:
    """The probe of such a line."""
    sampling = {**line["sampling"], "stop_token_ids": tuple(line["sampling"]["stop_token_ids"])}
    return Probe(
        tuple(Group(tuple(ids), tuple(lengths)) for ids, lengths in line["groups"]),
        Sampling(None, **sampling),
        line["natural"],
        line["at_once"],
        Limits(**line["limits"]) if line["limits"] else None,
        line["until"],
        line["seeded"],
        line["steps"],
    )


def measured_from_json(line: Mapping[str, Any]) -> Measured:
    """What a child's answer says."""
    known = {name: line[name] for name in Measured.__slots__ if name in line}
    known["lengths"] = tuple(tuple(each) for each in line.get("lengths", ()))
    known["steps"] = tuple((int(running), float(seconds)) for running, seconds in line.get("steps", ()))
    known["stats"] = EngineStats(**line.get("stats", {}))
    known |= {name: Latency(**line[name]) for name in ("first_token", "between_tokens") if line.get(name)}
    return Measured(**known)


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop_token_ids")
