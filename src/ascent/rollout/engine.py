"""The seam of the sampling engine: what every engine takes and gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ascent.types import Completion, EngineStats, RolloutRequest

if TYPE_CHECKING:
    from torch import Tensor


class RolloutEngine(Protocol):
    """Samples completions. Used only by the thread that built it.

    Every completion of a request is yielded by `poll` exactly once, as soon as it is finished, in any order. Weights
    may be updated only while nothing is being sampled.
    """

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Queue requests, one a group. Raises PromptTooLongError when prompt and completion exceed the context."""
        ...

    def poll(self) -> list[Completion]:
        """Advance sampling and return what finished since the last call; [] when nothing did.

        An engine that samples whole batches may return all completions at once.
        """
        ...

    def unfinished(self) -> int:
        """How many completions were submitted and not yet returned by `poll`."""
        ...

    def needs_weights(self) -> bool:
        """Whether what was submitted can't be finished before `update_weights` is called again.

        So it is when servers were restarted and hold no weights of the trainer. Always False for an engine in the
        trainer's process.
        """
        ...

    def update_weights(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, canary: Canary | None = None
    ) -> None:
        """Replace all weights; names and shapes are those of the Hugging Face checkpoint.

        Completions sampled afterwards carry `version`. `named_tensors` is iterated to its end or not at all, because
        making them may be collective over processes. Raises WeightMismatchError when what arrived is not what was sent,
        or does not compute as the trainer's weights do (the same weights may be sent again), and WeightSyncError when a
        weight of the engine's model was not given or could not be loaded. Until a later call succeeds nothing is
        sampled.
        """
        ...

    def stats(self) -> EngineStats:
        """What the engine did since the last call of `stats`."""
        ...

    def close(self) -> None:
        """Free memory and processes. Safe to call twice."""
        ...


class PromptTooLongError(ValueError):
    """A prompt leaves no room for the completion in the engine's context."""


class WeightSyncError(RuntimeError):
    """New weights did not reach the engine."""


class WeightMismatchError(WeightSyncError):
    """The engine's weights are not what the trainer sent. `parameters` names those concerned, where that is known."""

    def __init__(self, message: str, parameters: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.parameters = tuple(parameters)


class EngineLostError(RuntimeError):
    """The sampling servers are gone and won't come back by themselves."""


@dataclass(frozen=True, slots=True)
class Canary:
    """Fixed token sequences and the log-probabilities that the trainer's weights give them.

    `logps[i][t]` is the log-probability of `sequences[i][t + 1]` after `sequences[i][: t + 1]`, at temperature 1.
    """

    sequences: tuple[tuple[int, ...], ...]
    logps: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine is built; names follow vLLM's `EngineArgs`.

    `engine_share` is the fraction of the device's memory for a colocated engine, `kv_cache_bytes` an exact size of the
    KV cache that takes its place (always set on CPU). `external_launcher` is True where a launcher made the processes.
    """

    model: str
    dtype: str  # "float32", "bfloat16" or "float16"
    max_model_len: int
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 4096
    prefix_caching: bool = True
    enforce_eager: bool = True
    engine_share: float = 0.3
    kv_cache_bytes: int | None = None
    trust_remote_code: bool = False
    external_launcher: bool = False


def check_length(request: RolloutRequest, max_model_len: int) -> None:
    """Raise PromptTooLongError when the request does not fit into `max_model_len` tokens."""
    needed = len(request.prompt_ids) + request.sampling.max_tokens
    if needed > max_model_len:
        raise PromptTooLongError(
            f"group {request.group_id}: a prompt of {len(request.prompt_ids)} tokens and a completion of up to "
            f"{request.sampling.max_tokens} need {needed} tokens, but the engine's context is {max_model_len}. "
            "Raise rollout.max_model_len, lower trainer.max_completion_length, or set tasks.max_prompt_tokens."
        )
