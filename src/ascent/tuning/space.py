"""Which settings are tried: the values of each, and why others aren't."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from ascent.tuning.probe import Limits, Machine

Value = int | float | bool | str | None
Binding = Literal["none", "cores"]

# field of Point -> the configuration's key; binding has none, but variables of the environment
KEYS = {
    "max_num_seqs": "rollout.max_num_seqs",
    "max_num_batched_tokens": "rollout.max_num_batched_tokens",
    "prefix_caching": "rollout.prefix_caching",
    "chunked_prefill": "rollout.chunked_prefill",
    "enforce_eager": "rollout.enforce_eager",
    "block_size": "rollout.block_size",
    "kv_cache_mb": "memory.kv_cache_mb",
    "engine_share": "memory.engine_share",
    "threads": "rollout.threads",
    "replicas": "rollout.replicas",
    "tensor_parallel": "rollout.tensor_parallel_size",
}
BOUND = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}  # OpenMP 5.2, sections 21.1.3 and 21.1.5
_TOKENS = (1024, 2048, 4096, 8192, 16384)
_MIB = 2**20
_CACHE_STEP = 64  # MiB


@dataclass(frozen=True, slots=True)
class Point:
    """Settings of an engine, named as `EngineSettings` and the configuration name them. `binding`: each thread has a
    core of its own. None: the platform's default."""

    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = True
    chunked_prefill: bool | None = None
    enforce_eager: bool = True
    block_size: int | None = None
    kv_cache_mb: int | None = None
    engine_share: float = 0.3
    threads: int | None = None
    binding: Binding = "none"
    replicas: int = 1
    tensor_parallel: int = 1

    @property
    def limits(self) -> Limits:
        """What can be set while the engine runs."""
        return Limits(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def engine(self) -> Point:
        """What needs an engine of its own: points with an equal one differ only in what can be set at runtime."""
        return replace(self, max_num_seqs=0, max_num_batched_tokens=0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the engine's process."""
        return dict(BOUND) if self.binding == "cores" else {}

    def changed(self, base: Point) -> dict[str, Value]:
        """The fields that differ from `base`, with this point's values."""
        both = ((each.name, getattr(self, each.name), getattr(base, each.name)) for each in _FIELDS)
        return {name: own for name, own, other in both if own != other}

    def told(self, base: Point) -> str:
        """What differs from `base`, in the configuration's words."""
        named = {name: value for name, value in self.changed(base).items() if name in KEYS}
        words = [f"{KEYS[name].partition('.')[2]}={_told(value)}" for name, value in named.items()]
        if self.binding != base.binding:
            words.append("threads bound to cores" if self.binding == "cores" else "threads not bound")
        return " ".join(words) or "as configured"

    def to_json(self) -> dict[str, Value]:
        """All fields."""
        return asdict(self)


_FIELDS = fields(Point)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """So many points that weren't tried, and why."""

    points: int
    what: str
    why: str

    def to_text(self) -> str:
        """In a sentence."""
        count = f"{self.points} settings" if self.points > 1 else "1 setting" if self.points else ""
        return f"{self.what}{f' ({count})' if count else ''}: {self.why}"


@dataclass(frozen=True, slots=True)
class Space:
    """The points to choose from, `base` (as the run is configured) among them. `values` are those of each field that
    has several, in an order in which neighbours are alike."""

    base: Point
    values: Mapping[str, tuple[Value, ...]]
    points: tuple[Point, ...]
    left_out: tuple[LeftOut, ...] = ()

    def built_for(self, point: Point, failed: Collection[Point] = ()) -> Point:
        """The largest engine, of those that fit and haven't failed, in which this point and others with the same
        `engine` can be measured by setting limits at runtime."""
        alike = [
            each
            for each in self.points
            if each.engine == point.engine
            and each not in failed
            and each.max_num_seqs >= point.max_num_seqs
            and each.max_num_batched_tokens >= point.max_num_batched_tokens
        ]
        return max(alike, key=lambda each: (each.max_num_seqs, each.max_num_batched_tokens), default=point)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a generation needs of an engine: completions at once, tokens of the longest sequence, bytes of keys and
    values of one sequence (None: not known), and sequences that the configured KV cache holds (None: not known).
    `shares_device`: the engine has its memory from a device that trains."""

    sequences: int
    longest: int
    sequence_bytes: int | None = None
    cache_holds: int | None = None
    shares_device: bool = True


def space(
    base: Point, machine: Machine, needs: Needs, *, servers: int = 0, fits: Callable[[Point], bool] = lambda point: True
) -> Space:
    """All combinations of the values that may matter on this machine, without those that don't fit. With `servers`
    devices that only sample, they are divided between replicas and tensor parallelism."""
    values, left_out = _values(base, machine, needs, servers)
    varied = {name: each for name, each in values.items() if len(each) > 1}
    allowed = [point for point in _product(base, varied) if _possible(point, servers)]
    points = [point for point in allowed if point == base or fits(point)]
    if len(points) < len(allowed):
        why = "by the plan of the memory they don't fit"
        left_out.append(LeftOut(len(allowed) - len(points), "other combinations", why))
    return Space(base, varied, tuple(points), tuple(left_out))


def _product(base: Point, values: Mapping[str, Sequence[Value]]) -> Iterator[Point]:
    for chosen in itertools.product(*values.values()):
        changes: Any = dict(zip(values, chosen, strict=True))
        yield replace(base, **changes)


def _possible(point: Point, servers: int) -> bool:
    """Whether vLLM and the devices allow it."""
    if servers and point.replicas * point.tensor_parallel != servers:
        return False
    return point.max_num_batched_tokens >= point.max_num_seqs


def _values(
    base: Point, machine: Machine, needs: Needs, servers: int
) -> tuple[dict[str, tuple[Value, ...]], list[LeftOut]]:
    """The values of each field, the base's among them, and why others are left out."""
    left_out: list[LeftOut] = []
    most = max(needs.sequences, 1)
    seqs = {max(1, most // part) for part in (1, 2, 4, 8)} | {base.max_num_seqs}
    longest = [max(tokens, needs.longest) for tokens in _TOKENS if machine.kind != "cpu" or tokens <= 8192]
    tokens = {*longest, base.max_num_batched_tokens}
    values: dict[str, tuple[Value, ...]] = {
        "max_num_seqs": tuple(sorted(seqs)),
        "max_num_batched_tokens": tuple(sorted(tokens)),
        "prefix_caching": (True, False),
        "chunked_prefill": _with(base.chunked_prefill, (None, False)),
    }
    if machine.kind == "npu":
        left_out.append(LeftOut(0, "graphs", "on NPUs it isn't proven that they see new weights (docs/ascend.md)"))
        left_out.append(LeftOut(0, "other block sizes", "the kernels of vllm-ascend are made for 128 tokens"))
    else:
        values["enforce_eager"] = (True, False)
        values["block_size"] = _with(base.block_size, (32, 64, None) if machine.kind == "cpu" else (None, 32, 64))
    values |= _memory_values(base, needs, left_out)
    if machine.kind == "cpu" and machine.cores > 1:
        values["threads"] = _with(base.threads, (max(1, machine.cores // 2), None))
        values["binding"] = ("none", "cores")
    if servers > 1:
        parts = tuple(each for each in range(1, servers + 1) if servers % each == 0)
        values |= {"replicas": parts, "tensor_parallel": parts}
    else:
        left_out.append(LeftOut(0, "replicas and tensor parallelism", "they divide several devices that only sample"))
    return values, left_out


def _memory_values(base: Point, needs: Needs, left_out: list[LeftOut]) -> dict[str, tuple[Value, ...]]:
    """Of the KV cache: larger ones as long as the configured one can't hold all sequences at once."""
    if needs.cache_holds is not None and needs.cache_holds >= needs.sequences:
        why = f"the configured one has room for {needs.cache_holds} sequences, and there are {needs.sequences}"
        left_out.append(LeftOut(0, "a larger KV cache", why))
        return {}
    if base.kv_cache_mb is None and not needs.shares_device:
        left_out.append(LeftOut(0, "the engine's share", "a server takes nearly all of a device of its own"))
        return {}
    if base.kv_cache_mb is None:
        shares = (base.engine_share, *(share / 10 for share in range(1, 10) if share / 10 > base.engine_share + 0.05))
        return {"engine_share": shares}
    if needs.sequence_bytes is None:
        left_out.append(LeftOut(0, "other sizes of the KV cache", "the model's dimensions aren't known"))
        return {}
    all_of_them = -(-needs.sequence_bytes * needs.sequences // (_CACHE_STEP * _MIB)) * _CACHE_STEP
    return {"kv_cache_mb": tuple(sorted({base.kv_cache_mb, max(all_of_them, base.kv_cache_mb)}))}


def _with(own: Value, usual: tuple[Value, ...]) -> tuple[Value, ...]:
    """The usual values, and the configured one where it is another."""
    return usual if own in usual else (own, *usual)


def _told(value: Value) -> str:
    if value is None:
        return "default"
    return str(value).lower() if isinstance(value, bool) else str(value)
