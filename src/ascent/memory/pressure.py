"""What the memory of a run shows of fragmentation and pressure, and what to do about it.

A fold over steps: `Pressure.step` takes one step's figures and gives what is new in it. Nothing here asks a device.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ascent.memory.cards import GIB

ALLOCATOR_VARIABLES = {"npu": "PYTORCH_NPU_ALLOC_CONF", "cuda": "PYTORCH_CUDA_ALLOC_CONF"}
_FRAGMENTED = 1.25  # times what tensors held at their peak, that the allocator holds of the device
_LEAST = GIB // 2  # less than that is not worth a sentence
_FULL = 0.95  # of the device
_GROWS_FOR = 6  # steps in a row in which what is held never shrank, by which growth is told from noise
_IDLE_CACHE = 0.35  # of the KV cache, that was never exceeded
_SURE_AFTER = 5  # steps, before what never happened counts


@dataclass(frozen=True, slots=True)
class Found:
    """One finding: a name, what was seen, and what to do."""

    name: str
    what: str
    mend: str

    def to_json(self) -> dict[str, str]:
        """As metrics and `memory.json` have it."""
        return {"name": self.name, "what": self.what, "mend": self.mend}


@dataclass(slots=True)
class Pressure:
    """Looks at steps. `kind` is the device's; `sleeps`: an engine in this process gives its memory back, with which
    some settings of the allocator can't be combined. Each finding is given once."""

    kind: str
    sleeps: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _given: set[str] = field(default_factory=set)
    _reserved: list[int] = field(default_factory=list)
    _preemptions: int = 0
    _cache_use: float = 0.0
    _steps: int = 0

    def step(
        self, *, allocated: int, reserved: int, total: int, preemptions: int = 0, cache_use: float | None = None
    ) -> list[Found]:
        """What is new. Bytes at their peak in the step, and of the whole device; completions of which the engine threw
        away keys and values, to compute them again; the largest share of its cache that was in use."""
        self._steps += 1
        self._preemptions += preemptions
        if cache_use is not None:
            self._cache_use = max(self._cache_use, cache_use)
        found = [*self._of_allocator(allocated, reserved, total), *self._of_engine(cache_use)]
        new = [each for each in found if each.name not in self._given]
        self._given |= {each.name for each in new}
        return new

    def _of_allocator(self, allocated: int, reserved: int, total: int) -> list[Found]:
        if self.kind == "cpu":
            return []
        found = []
        if reserved > _FRAGMENTED * allocated and reserved - allocated > _LEAST:
            what = (
                f"the allocator holds {_gib(reserved)} of the device where tensors took {_gib(allocated)} at most: the "
                f"rest, {_gib(reserved - allocated)}, lies in pieces between them"
            )
            found.append(Found("fragmentation", what, self._against_fragments()))
        if reserved > _FULL * total:
            what = f"{_gib(reserved)} of the device's {_gib(total)} are held: the next larger batch may not fit"
            mend = "Lower memory.engine_share or trainer.max_tokens_per_batch; ascent plan FILE says by how much."
            found.append(Found("nearly full", what, mend))
        self._reserved.append(reserved)
        last = self._reserved[-_GROWS_FOR:]
        rising = all(later >= earlier for earlier, later in itertools.pairwise(last))
        if len(last) == _GROWS_FOR and rising and last[-1] - last[0] > max(_LEAST, last[0] // 20):
            what = f"what the allocator holds grew in {_GROWS_FOR} steps, from {_gib(last[0])} to {_gib(last[-1])}"
            mend = (
                "Longer sequences from step to step explain it; else set trainer.torch_empty_cache_steps=1, and look "
                "whether a reward keeps tensors."
            )
            found.append(Found("growth", what, mend))
        return found

    def _against_fragments(self) -> str:
        """Advice that this run can follow."""
        variable = ALLOCATOR_VARIABLES.get(self.kind, "")
        setting = self.environment.get(variable, "").replace(" ", "").lower()
        else_ = "trainer.torch_empty_cache_steps=1 gives the pieces back each step, at some cost in speed"
        if self.sleeps:
            held = " It is set: take it out." if "expandable_segments:true" in setting else ""
            return (
                f"Not with {variable}=expandable_segments:True: an engine that sleeps (memory.engine_sleep) can't give "
                f"such memory back.{held} {variable}=max_split_size_mb:256 parts large blocks less; {else_}."
            )
        if "expandable_segments:true" in setting:
            return f"expandable_segments is on already; {else_}. On NPUs HCCL_BUFFSIZE and workspaces lie between, too."
        return f"Set {variable}=expandable_segments:True (not together with memory.engine_sleep); or {else_}."

    def _of_engine(self, cache_use: float | None) -> list[Found]:
        found = []
        if self._preemptions:
            what = (
                f"the engine's KV cache was too small: {self._preemptions} times it threw a completion's keys and "
                "values away and computed them again"
            )
            mend = "Raise memory.engine_share (or memory.kv_cache_mb), or lower rollout.max_num_seqs."
            found.append(Found("preemptions", what, mend))
        if cache_use is not None and self._steps >= _SURE_AFTER and 0 < self._cache_use < _IDLE_CACHE:
            what = f"no more than {self._cache_use:.0%} of the engine's KV cache was ever in use"
            mend = "Lower memory.engine_share (or memory.kv_cache_mb) and give the room to larger passes of the update."
            found.append(Found("idle cache", what, mend))
        return found


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
