"""The search's engines: child processes, one for each replica, that sample the workload together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ascent import devices
from ascent.rollout.engine import EngineSettings
from ascent.tuning.probe import Limits, Machine, Measured, Probe
from ascent.tuning.space import Point
from ascent.tuning.trial import EngineChild
from ascent.tuning.workload import Workload
from ascent.types import Sampling

_MIB = 2**20
_Answer = TypeVar("_Answer")

Start = Callable[[Mapping[str, str]], EngineChild]


@dataclass(slots=True)
class ChildEngines:
    """See search.Engines. `settings` are the configured engine's, which a point changes; `patience` is how many seconds
    an answer is waited for, and `started` a child that stands already, for the first engine that can have it."""

    settings: EngineSettings
    machine: Machine
    workload: Workload
    sampling: Sampling
    seeded: bool
    log: Path
    patience: float
    started: EngineChild | None = None
    start: Start | None = None
    _children: list[EngineChild] = field(default_factory=list)

    def open(self, built: Point) -> None:
        """See search.Engines; replicas start side by side."""
        self._end()
        settings = engine_settings(self.settings, built)
        self._children = [self._child(built, replica) for replica in range(built.replicas)]
        self._together(lambda child, replica: child.open(settings, self.patience))

    def probe(self, point: Point, share: float, until: float | None) -> Measured:
        """See search.Engines."""
        return self.generation(self.workload.shortened(share), point.limits, until)

    def generation(self, workload: Workload, limits: Limits | None, until: float | None = None) -> Measured:
        """One generation of any workload on the engine that stands; its groups are dealt out to replicas in turn."""
        count = len(self._children)
        probes = [
            Probe(workload.groups[replica::count], self.sampling, limits=limits, until=until, seeded=self.seeded)
            for replica in range(count)
        ]
        wait = self.patience + (until or 0.0)
        return _sum(self._together(lambda child, replica: child.probe(probes[replica], wait)))

    def natural(self, workload: Workload) -> Measured:
        """A generation whose completions end as the policy ends them, on the first replica."""
        return self._children[0].probe(Probe(workload.groups, self.sampling, natural=True), self.patience)

    def close(self) -> None:
        """End all processes."""
        self._end()
        if self.started is not None:
            self.started.close()
            self.started = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self) -> None:
        for child in self._children:
            child.close()
        self._children = []

    def _child(self, built: Point, replica: int) -> EngineChild:
        environment = dict(built.environment)
        per_engine = built.tensor_parallel
        if built.replicas * per_engine > 1 and self.machine.kind != "cpu":
            places = range(replica * per_engine, (replica + 1) * per_engine)
            environment |= devices.restricted_to(self.machine.kind, places, os.environ)
        if built.replicas > 1 and self.machine.kind == "cpu" and built.threads is None:
            environment["OMP_NUM_THREADS"] = str(max(1, self.machine.cores // built.replicas))
        if not environment and self.started is not None:
            child, self.started = self.started, None
            return child
        start = self.start or (lambda variables: EngineChild(self.log, variables))
        return start(environment)

    def _together(self, ask: Callable[[EngineChild, int], _Answer]) -> list[_Answer]:
        """Every child's answer. A failure of one ends them all."""
        try:
            with ThreadPoolExecutor(len(self._children)) as pool:
                return list(pool.map(ask, self._children, range(len(self._children))))
        except BaseException:
            self._end()
            raise


def engine_settings(settings: EngineSettings, point: Point) -> EngineSettings:
    """The engine's settings with those of a point."""
    return replace(
        settings,
        max_num_seqs=point.max_num_seqs,
        max_num_batched_tokens=point.max_num_batched_tokens,
        prefix_caching=point.prefix_caching,
        chunked_prefill=point.chunked_prefill,
        enforce_eager=point.enforce_eager,
        block_size=point.block_size,
        kv_cache_bytes=None if point.kv_cache_mb is None else point.kv_cache_mb * _MIB,
        engine_share=point.engine_share,
        threads=point.threads,
        tensor_parallel=point.tensor_parallel,
    )


def _sum(parts: list[Measured]) -> Measured:
    """Of replicas: they sample side by side, so the slowest one's seconds count."""
    return Measured(
        seconds=max(part.seconds for part in parts),
        sequences=sum(part.sequences for part in parts),
        tokens=sum(part.tokens for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        cut=any(part.cut for part in parts),
        stats=parts[0].stats,
        peak_bytes=max(part.peak_bytes for part in parts),
        total_bytes=parts[0].total_bytes,
    )
