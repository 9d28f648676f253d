"""Engines with a known best, in a time of their own: the search's stand-in for vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ascent.memory.cards import Card
from ascent.tuning.probe import Machine, Measured, TrialError
from ascent.tuning.space import Needs, Point, Space, space

TOKENS = 10_000
Speed = Callable[[Point], float]


def smooth(point: Point) -> float:
    """Tokens/s: best with all sequences at once, graphs, and blocks of 32; two settings act together."""
    speed = 400.0 * (point.max_num_seqs / 64) ** 0.5
    speed *= 1.0 if point.enforce_eager else 1.25
    speed *= {None: 1.0, 32: 1.3, 64: 1.1}[point.block_size]
    speed *= 1.0 if point.prefix_caching or point.block_size is None else 0.75
    speed *= 0.6 if point.threads == 1 else 1.0
    return speed * (0.9 if point.max_num_batched_tokens < 2048 and point.chunked_prefill is None else 1.0)


@dataclass
class StandIn:
    """See search.Engines. `breaks` says which points fail, and how; `noise` is added to the log of speed in turn."""

    speed: Speed = smooth
    breaks: Callable[[Point], TrialError | None] = lambda point: None
    start_seconds: float = 10.0
    noise: tuple[float, ...] = (0.0,)
    now: float = 0.0
    opened: list[Point] = field(default_factory=list)
    probed: list[tuple[Point, float]] = field(default_factory=list)

    def open(self, built: Point) -> None:
        self.now += self.start_seconds if built.enforce_eager else 3 * self.start_seconds
        self.opened.append(built)
        if (error := self.breaks(built)) is not None:
            raise error

    def probe(self, point: Point, share: float, until: float | None) -> Measured:
        assert point.engine == self.opened[-1].engine
        assert point.max_num_seqs <= self.opened[-1].max_num_seqs
        noisy = self.speed(point) * (1 + self.noise[len(self.probed) % len(self.noise)])
        self.probed.append((point, share))
        seconds, tokens = TOKENS * share / noisy, int(TOKENS * share)
        if until is not None and seconds > until:
            self.now += until
            return Measured(until, 10, int(tokens * until / seconds), 0, cut=True)
        self.now += seconds
        return Measured(seconds, 64, tokens, 0)


BASE = Point(64, 4096, kv_cache_mb=512)
MACHINE = Machine("cpu", 1, 2, Card("test", "cpu", 2**34, 2**34, 0, 0, 1e10, bf16=False))


def cpu_space(**changed: object) -> Space:
    """As on two cores, for 64 completions of at most 300 tokens."""
    return space(BASE, MACHINE, Needs(64, 300, 2**20, 64))
