"""The ways of sampling that are compared, from the slowest: what each is, and the engine settings of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings
from ascent.tables import nearest

STAGES = {
    "padded": "batches of N; all rows are computed until the longest of their batch has ended",
    "static": "batches of N; a row is computed until it ends, the next batch begins when all have ended",
    "dynamic": "all at once, N at a time: a row that ends makes room for the next; default settings",
    "batching": "and as many rows and tokens a step as tuned",
    "memory-layout": "and the KV cache, its blocks, its sharing of prompts and the engine's share as tuned",
    "tuned": "and all other settings as tuned",
}
NEED_TUNED = ("batching", "memory-layout", "tuned")
_BATCHING = ("max_num_seqs", "max_num_batched_tokens", "chunked_prefill")
_LAYOUT = ("kv_cache_bytes", "engine_share", "block_size", "prefix_caching")


@dataclass(frozen=True, slots=True)
class Stage:
    """One way of sampling a workload: `at_once` completions are submitted together, None means all; `padded`: each as
    long as the longest of those. `environment` are variables of the engine's process."""

    name: str
    settings: EngineSettings
    at_once: int | None = None
    padded: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    def like(self, other: Stage) -> bool:
        """Whether both measure the same."""
        return replace(self, name="") == replace(other, name="")


def chosen(names: Sequence[str] | None, *, with_tuned: bool) -> tuple[str, ...]:
    """The stages that are asked for, in their order; all that can be measured for None. Raises InputError for an
    unknown name, and for one that needs tuned settings where there are none."""
    if names is None:
        return tuple(name for name in STAGES if with_tuned or name not in NEED_TUNED)
    for name in names:
        if name not in STAGES:
            raise InputError(
                f"--stages {name}: no such stage{nearest(name, list(STAGES))}", f"There are {', '.join(STAGES)}."
            )
        if name in NEED_TUNED and not with_tuned:
            raise InputError(
                f"--stages {name}: it needs tuned settings",
                "Give those of `ascent tune` with --tuned FILE, or let --tune TIME look for some.",
            )
    return tuple(name for name in STAGES if name in names)


def planned(
    names: Sequence[str],
    default: EngineSettings,
    tuned: EngineSettings | None,
    rows: int,
    environment: Mapping[str, str] | None = None,
) -> list[Stage]:
    """The stages of these names. `rows` is N: what `default` has at a time, and the size of a static batch. The
    variables of `environment` belong to the tuned settings."""
    default = replace(default, max_num_seqs=rows)
    made = {
        "padded": Stage("padded", default, rows, padded=True),
        "static": Stage("static", default, rows),
        "dynamic": Stage("dynamic", default),
    }
    if tuned is not None:
        batching = _with(default, tuned, _BATCHING)
        made["batching"] = Stage("batching", batching)
        made["memory-layout"] = Stage("memory-layout", _with(batching, tuned, _LAYOUT))
        made["tuned"] = Stage("tuned", tuned, environment=tuple(sorted((environment or {}).items())))
    return [made[name] for name in names]


def _with(settings: EngineSettings, other: EngineSettings, names: Sequence[str]) -> EngineSettings:
    return replace(settings, **{name: getattr(other, name) for name in names})
