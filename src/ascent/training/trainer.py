"""GRPOTrainer: TRL's, with completions scored while others are still being sampled, and every step accounted for.

One step, in the order of TRL's loop: `training_step` asks `_prepare_inputs` for a batch; each `steps_per_generation` of
them `_generate_and_score_completions` samples a new one (`_generate_single_turn`: the sampler brings the weights into
the engine, starts the rewards of each completion as it ends, and gives all of them back), takes the old and reference
log-probabilities, collects the rewards (`_calculate_rewards`) and makes advantages; the algorithm makes the loss of it;
backward and optimizer step are TRL's, unchanged. What is overridden is listed in `trl_overrides`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from trl.trainer.grpo_config import GRPOConfig as TRLConfig

from ascent import devices
from ascent.algorithms.base import Algorithm
from ascent.compat.epoch_order import OrderOfLaterEpochs
from ascent.compat.float_masks import keep_float_masks
from ascent.config import trl_fields
from ascent.errors import InputError
from ascent.rewards.base import ScoredReward
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.tracking.run_directory import RunState
from ascent.tracking.trackers.guard import has_trackers
from ascent.training.arguments import default_arguments, own_setting
from ascent.training.batches.correction import Corrected, without_old_pass
from ascent.training.batches.drawing import hooks as drawing
from ascent.training.batches.drawing.building import refill_for
from ascent.training.batches.settings import StepBatches, step_batches
from ascent.training.batches.signal import Silence, without_signal
from ascent.training.checkpointing import Checkpointing
from ascent.training.engines.building import build_engine, needs_of, standing_servers
from ascent.training.engines.sampling import (
    check_adapters,
    check_staleness,
    difference_check,
    refuse_biased_ratio,
    sampler_for,
)
from ascent.training.gpro_arguments import algorithm_of
from ascent.training.numerics.guard import norm_of
from ascent.training.numerics.sources import known_logps
from ascent.training.numerics.watching import watch
from ascent.training.records import logged
from ascent.training.records.batch import BatchRecord
from ascent.training.records.communication import Communication
from ascent.training.records.engine_figures import of_all_ranks
from ascent.training.records.evaluations import Evaluations, OpenEvaluation, check_evaluation_batch
from ascent.training.records.generations import Generations
from ascent.training.records.memory import MemoryRecord
from ascent.training.records.metrics.table import measure_all
from ascent.training.records.recorder import Recorder
from ascent.training.records.shapes import Shapes
from ascent.training.records.step_metrics import StepMetrics, gained, seen
from ascent.training.records.step_record import step_record
from ascent.training.sampling_settings import completion_seed, sampling_settings
from ascent.training.step.agreement import Agreement
from ascent.training.step.clock import Phase, StepClock
from ascent.training.step.groups import LocalGroup, group_requests
from ascent.training.step.lookahead import Lookahead
from ascent.training.step.model_rewards import stream_model_rewards
from ascent.training.step.ranks import Ranks
from ascent.training.step.sampler import Receive, print_on_stderr
from ascent.training.step.sampler_difference import difference_of
from ascent.training.step.sharing import Sharing
from ascent.training.trl_path import check_settings, takes_trl_path, without_engine
from ascent.types import Completion, Sampling


class GRPOTrainer(Checkpointing):
    """TRL's `GRPOTrainer` with Ascent's engine seam, streamed rewards and records.

    Arguments are TRL's. Beside them: `engine` says how vLLM is built (default: from the `vllm_*` fields of `args`),
    names another engine (`ascent.tables.ENGINES`), or is an engine that samples elsewhere (`ascent.connect`); with one,
    and `staleness` 1, the next generation is sampled while this one trains. `offload` see `step.sharing`. `algorithm`
    makes the update (default: GRPO, or GPRO with a `GPROConfig`). `recorder` receives steps and completions, `run_name`
    stands in sample ids. Without `verify` nobody compares what sampler and trainer compute. With `args.plain`
    everything is TRL's; so it is for `tools`, `rollout_func`, `environment_factory` and transformers' continuous
    batching, with a warning.

    Where the engine fails for good, every process of the training raises the same error, which is then also
    `agreement.ended_with`.
    """

    args: TRLConfig
    model: Any
    processing_class: Any

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: TRLConfig | None = None,
        *positional: Any,
        engine: EngineSettings | RolloutEngine | str | None = None,
        staleness: int = 0,
        algorithm: Algorithm | None = None,
        recorder: Recorder | None = None,
        run_name: str = "run",
        verify: bool = True,
        offload: str = "none",
        **keywords: Any,
    ) -> None:
        """Raises InputError for settings, a staleness or adapters that can't be had."""
        args = copy.copy(args) if args is not None else default_arguments(model)
        self._algorithm: Algorithm = algorithm or algorithm_of(args)
        self._plain = takes_trl_path(
            args,
            (model, reward_funcs, args, *positional),
            keywords,
            engine=engine,
            staleness=staleness,
            algorithm=self._algorithm,
        )
        self._recorder, self._run_name = recorder, run_name
        self._memory = MemoryRecord(sleeps=isinstance(engine, EngineSettings) and engine.sleeps)
        if engine is not None:  # another than vLLM's must be named
            args.use_vllm = not isinstance(engine, str) or engine == "vllm"
        standing = engine is None and args.use_vllm and args.vllm_mode == "server"
        self._served = standing or not (engine is None or isinstance(engine, (EngineSettings, str)))
        samples: trl_fields.Engine = "server" if self._served else "colocate" if args.use_vllm else "transformers"
        for note in () if self._plain else check_settings(args, samples):
            if args.process_index == 0:
                print_on_stderr(f"note: {note}")
        if standing and not self._plain:
            engine = standing_servers(args)
        chosen = engine if engine is not None else "vllm" if args.use_vllm else "transformers"
        check_staleness(staleness, chosen)
        keep_float_masks()
        # Without this TRL lets every process of a multi-NPU run spread its model over all NPUs.
        init_kwargs: Any = args.model_init_kwargs or {}
        args.model_init_kwargs = {"device_map": None, **init_kwargs}
        with contextlib.nullcontext() if self._plain else without_engine():
            super().__init__(model, reward_funcs, args, *positional, **keywords)
        ranks = Ranks(self.accelerator.process_index, self.accelerator.num_processes)
        self.agreement = Agreement(ranks, print_on_stderr)
        self._clock = StepClock(devices.synchronize, self._memory.left)
        self._generation = 0
        self._batch: BatchRecord | None = None
        self._step_metrics = StepMetrics(self.accelerator.device)
        self._shapes = Shapes.of_training(self.model, print_on_stderr if ranks.rank == 0 else lambda text: None)
        self._communication = Communication(ranks.count)
        self.add_callback(self._communication)
        self._kept = Generations(recorder, run_name, ranks, self.accelerator.device)
        self._engine_stats = lambda: of_all_ranks(self.engine, ranks, same_servers=self._served)
        self._evaluations = Evaluations(ranks, self._clock, recorder, run_name, self.args.seed, self._engine_stats)
        self.after_step: Callable[[], None] = lambda: None  # once a step is recorded, before its checkpoint; all ranks
        self._recorded_step = self._saved_step = 0
        self._reward_seconds = 0.0
        self._sampled_since_step = False
        self._resume_point = RunState(generation=0, micro_step=0, step=0)
        self._resume_slices = None
        self._looks_ahead = staleness > 0
        self._lookahead: Lookahead | None = None
        self._refill = None
        self._resume_refill = None
        self.engine: RolloutEngine | None = None
        self._generate_every = int(self.args.steps_per_generation or 1) * self.num_iterations
        self._batches = StepBatches()
        tell = print_on_stderr if self.accelerator.is_main_process else lambda text: None
        self.tell_alarm = (lambda text: None) if recorder is not None and recorder.tells_alarms else tell
        self._silence, self._numerics = Silence(self.tell_alarm), watch(self, recorder, tell)
        if not self._plain:
            self._build(chosen, ranks, tell, verify=verify, offload=offload)

    def _build(
        self,
        chosen: EngineSettings | RolloutEngine | str,
        ranks: Ranks,
        tell: Callable[[str], None],
        *,
        verify: bool,
        offload: str,
    ) -> None:
        """What isn't TRL's: how steps are trained on, the engine, what brings weights there and checks them."""
        refuse_biased_ratio(self)
        self._batches = step_batches(self, ranks, self.pass_of_trl, tell=tell)
        check_adapters(self.model, chosen)
        if isinstance(chosen, (EngineSettings, str)):
            name, settings = (chosen, None) if isinstance(chosen, str) else ("vllm", chosen)
            self.engine = build_engine(name, needs_of(self, settings))
        else:
            self.engine = chosen
        self._sampler = sampler_for(self, self.engine, verify=verify)
        self._sharing = Sharing(self, offload, lambda name, value: self._metrics["train"][name].append(value))
        self._difference_check = difference_check(self, self.engine, verify=verify)
        self._refill = refill_for(self)
        stream_model_rewards(self, self.engine.place, print_on_stderr)
        self.add_callback(OrderOfLaterEpochs())
        self.accelerator.wait_for_everyone()

    @property
    def generation(self) -> int:
        """The number of the next generation."""
        return self._generation

    @property
    def phase(self) -> Phase:
        """What it is doing, or was doing when an exception ended it."""
        return self._clock.current

    # ---- sampling -----------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self._plain:
            return super()._generate_and_score_completions(inputs)
        evaluation = self._evaluations.current
        if evaluation is None and not self.model.training:  # asked for by other ways than `evaluate` and `predict`
            with self.evaluating("eval"):
                return self._generate_and_score_completions(inputs)
        number, step, rank = self._generation, self.state.global_step + 1, self.accelerator.process_index
        self._batch = evaluation.batch(inputs) if evaluation else BatchRecord(inputs, str(number), number, step, rank)
        inputs = drawing.rows(self, self._batch, inputs)
        late = evaluation is None and self._batches.correction is not None
        with without_old_pass(self) if late else contextlib.nullcontext():
            output = super()._generate_and_score_completions(inputs)
        if evaluation is None and self._batch.silent is not None and own_setting(self.args, "skip_zero_advantage"):
            output["advantages"][self._batch.silent] = 0.0
        self._batch.take_output(output)
        measured = measure_all(self._batch, output, self.accelerator, evaluation=evaluation is not None)
        for name, value in measured.items():
            self._metrics["eval" if evaluation else "train"][name].append(value)
        if evaluation is None:
            self._numerics.sources.judge(measured, step)
            self._generation += 1
            if late:
                output |= self._kept.wait(self._batch)
            else:
                self._kept.keep(self._batch)
                if self._difference_check is not None:  # once its completions are kept: they show what went wrong
                    self._difference_check.check(difference_of(output, self._batch), step)
        return output

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: int, has_tool_images: bool = False
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        if self._plain:
            with self._clock.phase("generate"):
                return super()._generate_single_turn(
                    prompt_ids, images, multimodal_fields, num_generations, has_tool_images
                )
        if images is not None:
            raise InputError(
                "images in prompts: not available with Ascent's engine in this version",
                "Set plain=True in GRPOConfig to take TRL's own path.",
            )
        assert self._batch is not None
        completions = drawing.sample(self, self._batch, prompt_ids, num_generations)
        logps = [known_logps(completion) for completion in completions] if self.use_vllm else None
        return [completion.token_ids.tolist() for completion in completions], logps

    def sync_engine(self) -> None:
        """Move the current weights into the engine, unless it has them. Collective over all ranks."""
        self._sampler.sync()

    def sample(self, groups: Sequence[LocalGroup], receive: Receive | None = None) -> list[Completion]:
        """Sample all groups, in the order of their places. Each completion is given to `receive` as it ends; by default
        its rewards are started. Collective over all ranks."""
        self._sampled_since_step |= self._evaluations.current is None
        with self._sharing.sampling():
            return self._sampler.sample(groups, receive)

    def _groups(
        self, prompt_ids: Any, rows: Sequence[Mapping[str, Any]], num_generations: int, label: str, **place: Any
    ) -> list[LocalGroup]:
        return group_requests(
            prompt_ids,
            num_generations,
            self.sampling(),
            label=label,
            rank=self.accelerator.process_index,
            seed=completion_seed(self),
            rows=rows,
            **place,
        )

    def _prompt_ids(self, rows: Iterable[dict[str, Any]]) -> list[list[int]]:
        prompt_ids: list[list[int]] = self._tokenize_prompts([row["prompt"] for row in rows])[0]
        return prompt_ids

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """See Trainer. With staleness, the next generation's batches are fetched too. None are beyond the last step."""
        self._step_begins()
        self._kept.release(None)  # sampled for a step that never came to its end
        if self.state.global_step >= self.state.max_steps:
            return [], None
        if self._looks_ahead:
            if self._lookahead is None or self._lookahead.batches is not epoch_iterator:
                self._lookahead = Lookahead(epoch_iterator, self._generate_every)
            epoch_iterator = iter(self._lookahead.take(num_batches))
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The sampling settings of `args`."""
        return sampling_settings(self, greedy=greedy)

    # ---- evaluations --------------------------------------------------------------------------------------------

    def evaluating(self, name: str) -> AbstractContextManager[OpenEvaluation]:
        """What is sampled inside is an evaluation's: kept apart from the training, and recorded. Collective."""
        step, generation = self.state.global_step, self._generation
        return self._evaluations.evaluating(name, step=step, generation=generation, apart=not self._plain)

    def evaluation_loop(self, *args: Any, **keywords: Any) -> Any:
        """See Trainer. Every evaluation and prediction of TRL's comes through here."""
        check_evaluation_batch(self.args, self.num_generations_eval or self.num_generations or 1)
        before = seen(self._metrics["eval"])
        with self.evaluating(keywords.get("metric_key_prefix", "eval")) as evaluation:
            output = super().evaluation_loop(*args, **keywords)
            evaluation.take(output.metrics, gained(self._metrics["eval"], before))
        return output

    # ---- rewards, log-probabilities and loss -----------------------------------------------------------------------

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        call = functools.partial(super()._calculate_rewards, inputs, prompts, completions, completion_ids_list)
        with self._clock.phase("reward_exposed"):
            rewards = drawing.rewards(self, self._batch, completions, call)
        if (batch := self._batch) is None:
            return rewards
        local = rewards[self.accelerator.process_index * len(prompts) :][: len(prompts)]
        apart, names = self.multi_objective_aggregation == "normalize_then_sum", self.reward_func_names
        batch.take_rewards(prompts, completions, local, self.reward_weights, names, each_function=apart)
        if batch.evaluation is None:
            silent = without_signal(rewards, self.reward_weights, self.num_generations or 1, each_function=apart)
            batch.silent = silent[self.accelerator.process_index * len(prompts) :][: len(prompts)]
            if self._refill is None or not self._refill.replaces:  # otherwise it counts what it drew
                self._silence.heard(silent)
        for reward in list[Any](self.reward_funcs):
            if isinstance(reward, ScoredReward) and batch.filled is None:
                batch.scores = reward.scores
                self._reward_seconds += reward.seconds if batch.evaluation is None else 0.0
        return rewards

    # ---- the step's records -------------------------------------------------------------------------------------

    def _step_ended(self, corrected: Corrected | None) -> None:
        self._kept.release(corrected)
        if corrected is not None and self._difference_check is not None:
            self._difference_check.judge(corrected.newest, self.state.global_step + 1)

    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, *args: Any, **keywords: Any) -> None:
        if self.state.global_step != self._recorded_step:
            self._step_is_whole()
            self._finish_step(grad_norm, keywords.get("learning_rate"))  # the step's own, not the next one's
            self.after_step()
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **keywords)
        if self._globalstep_last_logged == self.state.global_step:
            tr_loss.zero_()  # the Trainer takes it from itself, which leaves NaN for ever
        self._step_metrics.logged(self._metrics["train"])

    def _finish_step(self, grad_norm: Any, learning_rate: float | None) -> None:
        self._clock.base("other")
        signals = self._kept.settle(sampled=self._sampled_since_step and not self._plain)  # before any rank tells
        times = self._clock.finish_step(self._reward_seconds)
        loss = float(self.accelerator.gather(self._step_metrics.take_loss()).mean())
        engine = self._engine_stats() if self._sampled_since_step else None
        self._reward_seconds, self._sampled_since_step = 0.0, False
        norm = None if grad_norm is None else norm_of(grad_norm)
        self._numerics.guard.write(self._metrics["train"])
        rate = self._get_learning_rate() if learning_rate is None else learning_rate
        metrics = {"loss": loss, "learning_rate": rate, "grad_norm": norm}
        metrics |= self._step_metrics.gained(self._metrics["train"]) | self._shapes.finish_step(times.step)
        metrics |= self._communication.finish_step(self, times.step)
        generation, use = None if self._plain else self._generation - 1, self._memory.step(engine)
        record = step_record(self.state, generation, metrics, signals, times, engine, use)
        here = self._recorder if self.accelerator.is_main_process else None
        found = None if here is None else here.step(record)
        logged.add(self._metrics["train"], record, found or {}, trackers=has_trackers(self))
