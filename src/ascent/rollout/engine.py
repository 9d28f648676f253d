"""The seam of the sampling engine: what every engine takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ascent.errors import InputError
from ascent.types import Completion, EngineStats, RolloutRequest

if TYPE_CHECKING:
    from torch import Tensor


class EnginePlace(Enum):
    """Where an engine samples."""

    TRAINERS_MODEL = "with the trainer's own model"  # whose weights change under it
    TRAINERS_PROCESS = "in the trainer's process"  # with a copy of the weights, in turns with the training
    ELSEWHERE = "in processes of its own"  # also while the trainer trains


class RolloutEngine(Protocol):
    """Samples completions. Used only by the thread that built it.

    Every completion of a request is yielded by `poll` exactly once, as soon as it is finished, in any order. Weights
    may be updated only while nothing is being sampled. `dtype` is what it computes in.
    """

    place: EnginePlace
    dtype: str

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

    def needs_weights(self, *, others_do: bool = False) -> bool:
        """Whether what was submitted can't be finished before `update_weights` is called again.

        So it is when servers were restarted and hold no weights of the trainer. `others_do` says that another process
        of the training has found so already: then this one need not wait until it is sure. Always False for an engine
        in the trainer's process.
        """
        ...

    def update_weights(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, canary: Canary | None = None
    ) -> None:
        """Replace all weights; names and shapes are those of the Hugging Face checkpoint.

        Completions sampled afterwards carry `version`, which is another one for other weights. With a `canary` it is
        proven that the engine computes with them as the trainer does. `named_tensors` is iterated to its end or not at
        all, because making them may be collective over processes. Until a call succeeds nothing is sampled. Raises

        - WeightMismatchError when what arrived is not what was sent, or does not compute as the trainer's weights do;
        - WeightTransferError when no server was reached although one lives, ServersRestartingError when all died;
        - ServerMemoryError when a server's own memory ran out;
        - WeightSyncError when a weight of the engine's model was not given, or can't be loaded.
        """
        ...

    def stats(self) -> EngineStats:
        """What the engine did since the last call of `stats`."""
        ...

    def close(self) -> None:
        """Free memory and processes. Safe to call twice."""
        ...


@runtime_checkable
class AbortingEngine(Protocol):
    """A RolloutEngine that can stop in the middle of completions and hand out what it has of them."""

    def cannot_abort(self) -> str | None:
        """Why it can't after all; None where it can."""
        ...

    def abort(self) -> list[Completion]:
        """Break off all that is unfinished. Returns each of them once, with the tokens and log-probabilities so far,
        perhaps none, and finish_reason "abort"; one that came to its end meanwhile, as `poll` would."""
        ...


class PromptTooLongError(ValueError):
    """A prompt leaves no room for the completion in the engine's context."""


class EngineError(RuntimeError):
    """Something went wrong between the trainer and its engine.

    An engine reports what happened by the class of the error and repeats nothing by itself, except single HTTP calls
    for completions. What is tried again, how often, and who must agree stands in `training/step/agreement.py`.
    """


class WeightSyncError(EngineError):
    """New weights can't reach the engine: sending them again would fail again."""


class WeightMismatchError(WeightSyncError):
    """The engine's weights are not what the trainer sent. `parameters` names those concerned, where that is known."""

    def __init__(self, message: str, parameters: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.parameters = tuple(parameters)


class WeightTransferError(WeightSyncError):
    """The way to servers that are alive failed: an HTTP 5xx, a broken connection, no answer in time.

    No server has the new weights. The same weights may be sent again.
    """


class ServersRestartingError(WeightSyncError):
    """Every server that was being given weights died meanwhile; they are being restarted. The same weights may be sent
    again, which waits for the first server that is back."""


class WeightsLostError(EngineError):
    """Servers were restarted and hold none of the trainer's weights: what is unfinished can't be finished before
    `update_weights` is called again (see `RolloutEngine.needs_weights`)."""


class ServerMemoryError(EngineError):
    """A sampling server ran out of memory: its own, not the trainer's."""


class EngineLostError(EngineError):
    """The sampling servers are gone and won't come back by themselves."""


@dataclass(frozen=True, slots=True)
class Canary:
    """Fixed token sequences and the log-probabilities that the trainer's weights give them.

    `logps[i][t]` is the log-probability of `sequences[i][t + 1]` after `sequences[i][: t + 1]`, at temperature 1.
    `trainer_dtype` is what the trainer computes in.
    """

    sequences: tuple[tuple[int, ...], ...]
    logps: tuple[tuple[float, ...], ...]
    trainer_dtype: str


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine is built; names follow vLLM's `EngineArgs`.

    `engine_share` is the fraction of the device's memory for a colocated engine, `kv_cache_bytes` an exact size of the
    KV cache that takes its place (always set on CPU). `external_launcher` is True where a launcher made the processes.
    `head_dtype` "float32" computes the output head in it, whatever `dtype` is; None: in `dtype`. With `sleeps` it gives
    weights and cache back between generations (vLLM's sleep mode). `block_size` is in tokens of the KV cache;
    `chunked_prefill`: a prompt may be computed in several steps, among others' tokens; None: as vLLM has them. With
    `threads` an engine on CPU computes with so many; None: as its process does. `tensor_parallel` is of an engine that
    has its process to itself; a trainer's own has one device.
    With `speculative` up to `speculative_tokens` tokens are guessed at once (`rollout/speculation.py`).
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
    speculative: Literal["ngram", "suffix"] | None = None
    speculative_tokens: int = 4
    head_dtype: str | None = None
    sleeps: bool = False
    block_size: int | None = None
    chunked_prefill: bool | None = None
    threads: int | None = None
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class EngineNeeds:
    """What a trainer hands to the engine that it builds (`ascent.tables.ENGINES`), each of which takes what it needs.

    `settings` say how a separate copy of the model is built. `open_model` opens the trainer's own model for generation
    (unwrapped, gathered); `max_model_len` is that model's limit of prompt and completion, in tokens.
    """

    settings: Callable[[], EngineSettings]
    open_model: Callable[[], AbstractContextManager[Any]]
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    bos_token_id: int | None
    max_model_len: int


def check_length(request: RolloutRequest, max_model_len: int) -> None:
    """Raise PromptTooLongError when the request does not fit into `max_model_len` tokens, InputError for a prompt
    without any token."""
    if not request.prompt_ids:
        raise InputError(
            f"group {request.group_id}: the prompt has no tokens, so there is nothing to go on from",
            "Leave empty prompts out of the dataset, or use a tokenizer that begins a text with a token.",
        )
    longest = 1 if request.sampling.max_tokens is None else request.sampling.max_tokens
    needed = len(request.prompt_ids) + longest
    if needed > max_model_len:
        raise PromptTooLongError(
            f"group {request.group_id}: a prompt of {len(request.prompt_ids)} tokens and a completion of up to "
            f"{longest} need {needed} tokens, but the engine's context is {max_model_len}. "
            "Raise rollout.max_model_len, lower trainer.max_completion_length, or set tasks.max_prompt_tokens."
        )
