"""What is asked: which engine, and what it must be able to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ascent.errors import InputError
from ascent.rollout.engines.scoring import TokenScores
from ascent.types import Completion, RolloutRequest

Kind = Literal["colocated", "transformers", "service"]
DTYPES = ("float32", "bfloat16", "float16")
KINDS: tuple[Kind, ...] = ("colocated", "transformers", "service")


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engine is asked. `service` is its name or the URLs of its servers; `dtype` is what the others compute in,
    `max_model_len` their context in tokens."""

    kind: Kind
    service: str | None = None
    dtype: str | None = None
    max_model_len: int = 0
    trust_remote_code: bool = False


def parse_engine(text: str) -> EngineChoice:
    """`colocated`, `transformers` or `service:NAME`. Raises InputError for anything else."""
    kind, _, service = text.partition(":")
    for known in KINDS:
        if kind == known and bool(service) == (known == "service"):
            return EngineChoice(known, service or None)
    raise InputError(f"--engine {text}: expected colocated, transformers, or service:NAME (a name or URLs)")


class Subject(Protocol):
    """What is asked."""

    eos_token_ids: tuple[int, ...]

    def sample(self, requests: Sequence[RolloutRequest]) -> list[Completion]:
        """Every completion of the requests, in any order. Raises InputError when the engine can't."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[TokenScores]:
        """See ScoringEngine. Raises InputError when the engine can't."""
        ...

    def memory(self) -> int | None:
        """The most bytes that it took, None where that can't be seen."""
        ...

    def processes(self) -> list[int]:
        """Processes other than this one and its children that work for it."""
        ...
