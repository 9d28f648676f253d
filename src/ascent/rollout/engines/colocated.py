"""vLLM inside the training process (colocated), driven step by step so that each completion is seen when it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ascent import devices
from ascent.errors import InputError
from ascent.rollout.engine import (
    Canary,
    EngineError,
    EngineNeeds,
    EnginePlace,
    EngineSettings,
    WeightSyncError,
    check_length,
)
from ascent.rollout.engines.counter import EngineCounter
from ascent.rollout.engines.scoring import TokenScores, score_in_process
from ascent.rollout.engines.threads import computing_threads
from ascent.rollout.engines.token_times import TokenTimes
from ascent.rollout.in_vllm.compat import seeded_prefill, speculative_temperature
from ascent.rollout.platform import engine_kind
from ascent.rollout.prerequisites import check_cpu_engine
from ascent.rollout.speculation import check_speculation
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.rollout.vllm_arguments import engine_arguments, sampling_arguments
from ascent.rollout.weights.in_place import InPlaceWeights, WeightLoader
from ascent.rollout.weights.packed_cpu import CpuWeights
from ascent.rollout.weights.verify.canary import CanaryTolerance
from ascent.rollout.weights.verify.canary_in_process import prove
from ascent.types import Completion, EngineStats, FinishReason, Logps, RolloutRequest, Sampling

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Pending:
    """A completion that is being sampled."""

    request: RolloutRequest
    index: int
    submitted_at: float


class ColocatedEngine:
    """A RolloutEngine over vLLM's `LLMEngine` in this process."""

    place = EnginePlace.TRAINERS_PROCESS

    def __init__(
        self, settings: EngineSettings, weights: WeightLoader | None = None, token_times: TokenTimes | None = None
    ) -> None:
        """Load the model; `weights` says how new ones reach it. `token_times` is filled while the engine samples.

        Raises InputError when the machine or the settings don't allow it.
        """
        self._settings = settings
        self._weights = weights or (CpuWeights() if engine_kind() == "cpu" else InPlaceWeights())
        self._pending: dict[str, _Pending] = {}
        self._counter = EngineCounter()
        self._version = 0
        self.dtype = settings.dtype
        self._tolerance = CanaryTolerance(settings.dtype)
        self._sequence = 0
        self._asleep = False
        self._engine = _start(settings, self._counter, token_times)

    @classmethod
    def for_trainer(cls, needs: EngineNeeds) -> ColocatedEngine:
        """The engine of a trainer in this process."""
        return cls(needs.settings())

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """See RolloutEngine. Each completion is a request of its own to vLLM: its prompt is computed once and shared
        through the prefix cache, and it comes back when it ends instead of with its group."""
        for request in requests:
            check_length(request, self._settings.max_model_len)
        self._wake()
        now = time.monotonic()
        for request in requests:
            for index in range(request.n):
                request_id = str(self._sequence)
                self._sequence += 1
                self._pending[request_id] = _Pending(request, index, now)
                seed = None if request.seed is None else request.seed + index
                prompt = {"prompt_token_ids": list(request.prompt_ids)}
                self._engine.add_request(request_id, prompt, _sampling_params(request.sampling, seed))

    def poll(self) -> list[Completion]:
        """See RolloutEngine; one step of vLLM's scheduler."""
        if not self._pending:
            return []
        with self._counter.busy(), computing_threads(self._settings.threads):
            outputs = self._engine.step()
        finished = [self._complete(output) for output in outputs if output.finished]
        for completion in finished:
            self._counter.finished(completion)
        return finished

    def unfinished(self) -> int:
        """See RolloutEngine."""
        return len(self._pending)

    def cannot_abort(self) -> str | None:
        """See AbortingEngine."""
        return None

    def abort(self) -> list[Completion]:
        """See AbortingEngine. A step that vLLM has begun in advance is let go: its tokens are sampled again."""
        states = {state.external_req_id: state for state in self._engine.output_processor.request_states.values()}
        parts = []
        for request_id in list(self._pending):
            state = states[request_id]
            tokens, logprobs = state.detokenizer.output_token_ids, state.logprobs_processor.logprobs
            parts.append(self._completion(request_id, tokens, logprobs, "abort"))
        self._engine.abort_request(list(states))
        core = self._engine.engine_core.engine_core
        while core.batch_queue:
            self._engine.step()
        for part in parts:
            self._counter.finished(part)
        return parts

    def score(self, sequences: Sequence[Sequence[int]]) -> list[TokenScores]:
        """See ScoringEngine."""
        if self._pending:
            raise ValueError(f"{len(self._pending)} completions are still being sampled")
        self._wake()
        return score_in_process(self._engine, sequences)

    def needs_weights(self, *, others_do: bool = False) -> bool:
        """See RolloutEngine."""
        del others_do
        return False

    def update_weights(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, canary: Canary | None = None
    ) -> None:
        """See RolloutEngine. Every parameter is known to be reached, and the canary that vLLM computes with them."""
        if self._pending:
            raise WeightSyncError(f"{len(self._pending)} completions are still being sampled with the old weights")
        import torch

        self._wake()
        with torch.no_grad():
            self._weights.load(self.model, self._engine.vllm_config.model_config, named_tensors)
        if self._engine.reset_prefix_cache() is False:
            raise WeightSyncError("vLLM kept its prefix cache, which holds keys and values of the old weights")
        if canary is not None:
            prove(self._engine, canary, self._tolerance, self._settings.max_model_len)
        self._version = version

    def rest(self) -> None:
        """A generation has ended: where it sleeps, its weights go to host memory and its cache is given up (sleep level
        1), until it is needed again."""
        if self._settings.sleeps and not self._asleep and not self._pending:
            self._engine.reset_prefix_cache()  # whose blocks are gone when it wakes up
            self._engine.sleep(level=1)
            self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            devices.empty_cache()  # vLLM takes its memory from the device, not from torch's allocator
            self._engine.wake_up()
            self._asleep = False

    def limit(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """From the next step on compute at most so many sequences and tokens at once.

        vLLM's scheduler reads both anew at each step, and buffers and graphs are made for what the engine was built
        with. Raises ValueError for more than that.
        """
        built = self._engine.vllm_config.scheduler_config
        for name, value, most in (
            ("max_num_seqs", max_num_seqs, built.max_num_seqs),
            ("max_num_batched_tokens", max_num_batched_tokens, built.max_num_batched_tokens),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name}={value}: the engine was built for 1 to {most}")
        scheduler = self._engine.engine_core.engine_core.scheduler
        scheduler.max_num_running_reqs = scheduler.max_num_active_reqs = max_num_seqs
        scheduler.max_num_scheduled_tokens = max_num_batched_tokens

    def forget_prompts(self) -> None:
        """Empty the prefix cache, as new weights do. Raises EngineError when vLLM keeps it."""
        if self._engine.reset_prefix_cache() is False:
            raise EngineError("vLLM kept its prefix cache, though nothing is being sampled")

    @property
    def model(self) -> Any:
        """vLLM's own module, for weight updates and tests."""
        return self._engine.model_executor.driver_worker.model_runner.model

    def stats(self) -> EngineStats:
        """See RolloutEngine."""
        return self._counter.take()

    def close(self) -> None:
        """See RolloutEngine. vLLM leaves its process groups to the process."""
        if self._engine is not None:
            self._engine.engine_core.shutdown()
            self._engine = None

    def _complete(self, output: Any) -> Completion:
        sample = output.outputs[0]
        reason = cast(FinishReason, sample.finish_reason)
        return self._completion(output.request_id, sample.token_ids, sample.logprobs, reason)

    def _completion(
        self, request_id: str, token_ids: Sequence[int], logprobs: Any, finish_reason: FinishReason
    ) -> Completion:
        pending = self._pending.pop(request_id)
        return Completion(
            group_id=pending.request.group_id,
            index=pending.index,
            prompt_ids=pending.request.prompt_ids,
            token_ids=as_token_ids(token_ids),
            logps=sampled_logps(logprobs),
            finish_reason=finish_reason,
            weight_version=self._version,
            submitted_at=pending.submitted_at,
            finished_at=time.monotonic(),
        )


def sampled_logps(logprobs: Any) -> Logps:
    """The log-probabilities of the sampled tokens, from vLLM's FlatLogprobs: the first of each position's entries."""
    return as_logps(np.asarray(logprobs.logprobs, np.float32)[np.asarray(logprobs.start_indices, np.intp)])


def _sampling_params(sampling: Sampling, seed: int | None) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    arguments = sampling_arguments(sampling, seed)
    try:
        if isinstance(structure := arguments.get("structured_outputs"), dict):
            arguments["structured_outputs"] = StructuredOutputsParams(**structure)
        # without FlatLogprobs vLLM makes a dict and an object for each token
        return SamplingParams(**arguments, output_kind=RequestOutputKind.FINAL_ONLY, flat_logprobs=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"vLLM refuses the sampling settings: {error}") from error


def _start(settings: EngineSettings, counter: EngineCounter, token_times: TokenTimes | None) -> Any:
    if engine_kind() == "cpu":
        check_cpu_engine()
    check_speculation(settings.speculative)
    if settings.sleeps:
        _check_sleep()
    with computing_threads(settings.threads), _unchanged_process():
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        seeded_prefill.mend()  # vLLM's plug-ins, which do it too, may be switched off (VLLM_PLUGINS)
        speculative_temperature.mend()
        arguments = EngineArgs(
            **engine_arguments(settings),
            distributed_executor_backend="external_launcher" if settings.external_launcher else None,
            tensor_parallel_size=settings.tensor_parallel,
            disable_log_stats=False,
            use_tqdm_on_load=False,
        )
        try:
            return LLMEngine.from_engine_args(arguments, stat_loggers=[_gauges(counter, token_times)])
        except (ValueError, NotImplementedError) as error:
            mend = "memory.kv_cache_mb or memory.engine_share say what it may take." if "memory" in str(error) else ""
            raise InputError(f"vLLM can't serve {settings.model} with these settings: {error}", mend) from error


def _check_sleep() -> None:
    from vllm.platforms import current_platform

    if not current_platform.is_sleep_mode_available():
        raise InputError(
            f"memory.engine_sleep=true: vLLM has no sleep mode on its platform here ({engine_kind()})",
            "Leave it out; memory.engine_share or memory.kv_cache_mb say what the engine keeps.",
        )


def _gauges(counter: EngineCounter, token_times: TokenTimes | None) -> Any:
    """A vLLM stat logger that writes into `counter`, and into `token_times` where they are asked for."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Gauges(StatLoggerBase):
        def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_args: Any, **_kwargs: Any) -> None:
            if scheduler_stats is not None:
                counter.kv_cache_use = max(counter.kv_cache_use, scheduler_stats.kv_cache_usage)
                counter.running = max(counter.running, scheduler_stats.num_running_reqs)
                counter.waiting = max(counter.waiting, scheduler_stats.num_waiting_reqs)
                counter.prefix_queries += scheduler_stats.prefix_cache_stats.queries
                counter.prefix_hits += scheduler_stats.prefix_cache_stats.hits
            if iteration_stats is not None:
                counter.preemptions += iteration_stats.num_preempted_reqs
                if token_times is not None:
                    token_times.add(
                        iteration_stats.time_to_first_tokens_iter, iteration_stats.inter_token_latencies_iter
                    )

        def log_engine_initialized(self) -> None: ...

    return Gauges


@contextlib.contextmanager
def _unchanged_process() -> Iterator[None]:
    """Put back what vLLM's start changes for the whole process: random states and `torch.set_num_threads`."""
    import torch

    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    with devices.unchanged_random_state():
        try:
            yield
        finally:
            torch.set_num_threads = set_num_threads
            torch.set_num_threads(threads)
