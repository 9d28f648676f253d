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

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights; names and shapes are those of the Hugging Face checkpoint.

        Completions sampled afterwards carry `version`. Raises WeightSyncError when a weight of the engine's model was
        not given or could not be loaded; the engine must not be used after that.
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
    """The engine's weights are not what the trainer sent."""


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
