"""The plain data that crosses rooms: frozen dataclasses without behaviour. Imports the sandbox's types only.

What was sampled is held in NumPy's arrays (`rollout/token_arrays.py` makes them), so that nothing walks over tokens in
Python. Nothing here needs torch, or imports NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ascent.sandbox.types import Language, Limits, Test, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TokenIds: TypeAlias = "NDArray[np.int32]"  # (C,), read-only
Logps: TypeAlias = "NDArray[np.float32]"  # (C,), read-only; NaN where the sampler could not say

Message: TypeAlias = dict[str, str]  # {"role": ..., "content": ...}
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Task:
    """One thing asked of the policy.

    `prompt` is plain text, or chat messages when the model has a chat template. `visible_tests` may appear in the
    prompt, `hidden_tests` never do; a reward uses either or both, evaluation both. `reference` is a known solution,
    used to check the task itself and never shown to the policy. `family` groups tasks in reports.
    """

    id: str
    prompt: str | tuple[Message, ...]
    visible_tests: tuple[Test, ...]
    hidden_tests: tuple[Test, ...] = ()
    entry_point: str | None = None
    language: Language = "python"
    limits: Limits | None = None
    family: str = ""
    prefix: str = ""  # text put before the completion to form the program (HumanEval: the function's head)
    prelude: str = ""  # Python whose names the program has without importing them (`Program.prelude`)
    reference: str | None = None

    @property
    def tests(self) -> tuple[Test, ...]:
        """Visible tests, then hidden tests."""
        return self.visible_tests + self.hidden_tests


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are sampled; names and meanings are those of vLLM's `SamplingParams`.

    `extra` holds further parameters of the engine in use (TRL's `generation_kwargs`).
    """

    max_tokens: int | None  # None: as many as the engine's context leaves room for
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    extra: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One group: `n` completions of one prompt. `seed` makes each completion of the group reproducible."""

    group_id: str
    prompt_ids: tuple[int, ...]
    n: int
    sampling: Sampling
    seed: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled continuation of a prompt. Equal to itself alone: compare what is meant, such as its tokens.

    `logps` are the sampler's log-probabilities of `token_ids`, one each, after temperature, or none at all where the
    engine gives none. Times are in seconds of `time.monotonic()`. `weight_version` says which weights sampled it: the
    engine's version of them, and from the trainer on the number of optimizer steps that had made them. One that was
    sampled in parts by several weights has `weight_spans`, the first token and the weights of each part, and the oldest
    of these as `weight_version`; otherwise they are empty. With finish_reason "abort" it is what was sampled until it
    was broken off. The completions of a group share the tuple of their prompt.
    """

    group_id: str
    index: int  # position in the group, 0 to n-1
    prompt_ids: tuple[int, ...]
    token_ids: TokenIds
    logps: Logps
    finish_reason: FinishReason
    weight_version: int
    submitted_at: float
    finished_at: float
    weight_spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """What a completion earned. `total` is None when it could not be judged (the sample is then masked). The first
    `visible_tests` of the verdict's outcomes are of visible tests, the others of hidden ones; None where nobody
    says."""

    total: float | None
    parts: dict[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    program: str = ""
    visible_tests: int | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The sampling engine since the last report. Fractions lie in 0..1; latencies are seconds for one completion."""

    kv_cache_use: float = 0.0  # largest seen
    running: int = 0  # most at once
    waiting: int = 0  # most at once
    preemptions: int = 0
    prefix_hit_rate: float = 0.0
    tokens_per_second: float = 0.0
    latency_p50: float = 0.0
    latency_p95: float = 0.0
    time_to_first_token: float = 0.0  # mean, from a server's receiving a request; 0.0 where the engine doesn't say


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a training step's wall time went, in seconds. The parts add up to `step`.

    `reward_exposed` is the reward time that the step waited for; `reward_total` runs beside sampling and is not a part.
    """

    step: float
    generate: float
    reward_exposed: float
    logps: float
    update: float
    sync: float
    other: float
    reward_total: float = 0.0
