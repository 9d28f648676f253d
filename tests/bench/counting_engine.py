"""A stand-in for the process with an engine: it computes what a probe would take from the cost of a step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Self

from ascent.rollout.engine import EngineSettings
from ascent.rollout.engines.token_times import latency
from ascent.tuning.probe import Measured, Probe, TrialError
from ascent.types import EngineStats

GIB = 2**30


@dataclass
class CountingChild:
    """A step of b completions takes `step + row * b` seconds, and a token of a prompt `prompt` more; places are taken
    in order, as soon as one is free. All takes `slower` times as long, but not in steps of one length. With `refuses`
    an engine of so many rows doesn't start."""

    step: float = 0.010
    row: float = 0.001
    prompt: float = 0.0
    slower: float = 1.0
    refuses: int | None = None
    opened: list[EngineSettings] = field(default_factory=list)
    asked: list[Probe] = field(default_factory=list)

    def open(self, settings: EngineSettings, seconds: float = 0.0) -> float:
        if settings.max_num_seqs == self.refuses:
            raise TrialError("memory", "no room for the KV cache\n  more lines")
        self.opened.append(settings)
        return 1.5

    def probe(self, probe: Probe, seconds: float = 0.0) -> Measured:
        self.asked.append(probe)
        lengths = [length for group in probe.groups for length in group.lengths]
        size = probe.at_once or len(lengths)
        waves = [lengths[first : first + size] for first in range(0, len(lengths), size)]
        gaps = [gap for wave in waves for gap in self.steps(wave)]
        prompts = sum(len(group.prompt_ids) * len(group.lengths) for group in probe.groups)
        uniform = len(set(lengths)) == 1 and probe.at_once is None
        first = self.prompt * prompts + gaps[0]
        return Measured(
            seconds=(sum(gaps) + self.prompt * prompts) * (1.0 if uniform else self.slower),
            sequences=len(lengths),
            tokens=sum(lengths),
            prompt_tokens=prompts,
            stats=EngineStats(kv_cache_use=0.25, preemptions=1),
            peak_bytes=3 * GIB,
            total_bytes=24 * GIB,
            first_token=latency([first]),
            between_tokens=latency(gaps),
        )

    def steps(self, lengths: list[int]) -> list[float]:
        """The seconds of each step: walked one by one."""
        rows, left, found = self.opened[-1].max_num_seqs, list(lengths), []
        running: list[int] = []
        while left or running:
            while left and len(running) < rows:
                running.append(left.pop(0))
            found.append(self.step + self.row * len(running))
            running = [length - 1 for length in running if length > 1]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *told: Any) -> None: ...


def ragged(count: int, most: int) -> list[int]:
    """Lengths from 1 to `most`, most of them short; always the same."""
    numbers = itertools.accumulate(range(count), lambda now, _: (now * 1103515245 + 12345) % 2**31, initial=7)
    return [1 + int((most - 1) * (number / 2**31) ** 3) for number in itertools.islice(numbers, count)]
