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
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl.trainer.grpo_config import GRPOConfig as TRLConfig
from trl.trainer.grpo_trainer import GRPOTrainer as TRLTrainer

from ascent import devices, trl_fields
from ascent.algorithms.base import Algorithm
from ascent.algorithms.grpo import GRPO
from ascent.compat.cpu_index import accept_cpu_index
from ascent.compat.float_masks import keep_float_masks
from ascent.errors import InputError
from ascent.rewards.base import ScoredReward, start_rewards
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.rollout.weights.parameters import PolicyWeights
from ascent.rollout.weights.verify.canary_sequences import canary_sequences
from ascent.tracking.run_directory import STATE_FILE, RunState, read_state, write_json
from ascent.training.arguments import default_arguments
from ascent.training.checkpoint import sampled_ahead
from ascent.training.engines.building import build_engine, needs_of, standing_servers
from ascent.training.records.batch import BatchRecord, none_if_nan
from ascent.training.records.metrics.table import measure_all
from ascent.training.records.recorder import Recorder, StepRecord
from ascent.training.sampling_settings import sampling_settings
from ascent.training.step.agreement import Agreement
from ascent.training.step.clock import Phase, StepClock
from ascent.training.step.groups import LocalGroup, group_requests
from ascent.training.step.lookahead import Lookahead
from ascent.training.step.ranks import Ranks
from ascent.training.step.sampler import Receive, Sampler, print_on_stderr
from ascent.training.trl_path import check_settings, takes_trl_path, without_engine
from ascent.types import Completion, Sampling


class GRPOTrainer(TRLTrainer):
    """TRL's `GRPOTrainer` with Ascent's engine seam, streamed rewards and records.

    Arguments are TRL's. Beside them: `engine` says how vLLM is built (default: from the `vllm_*` fields of `args`),
    names another engine (`ascent.tables.ENGINES`), or is an engine that samples elsewhere (`ascent.connect`); with one,
    and `staleness` 1, the next generation is sampled while this one trains. `algorithm` makes the loss (default: GRPO,
    which takes TRL's). `recorder` receives steps and completions, `run_name` stands in sample ids. With `args.plain`
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
        **keywords: Any,
    ) -> None:
        """Raises InputError for settings that can't be kept."""
        args = copy.copy(args) if args is not None else default_arguments(model)
        self._plain = takes_trl_path(
            args,
            (model, reward_funcs, args, *positional),
            keywords,
            engine=engine,
            staleness=staleness,
            algorithm=algorithm,
        )
        self._recorder, self._run_name = recorder, run_name
        self._algorithm: Algorithm = algorithm or GRPO()
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
        keep_float_masks()
        # Without this TRL lets every process of a multi-NPU run spread its model over all NPUs.
        init_kwargs: Any = args.model_init_kwargs or {}
        args.model_init_kwargs = {"device_map": None, **init_kwargs}
        with contextlib.nullcontext() if self._plain else without_engine():
            super().__init__(model, reward_funcs, args, *positional, **keywords)
        ranks = Ranks(self.accelerator.process_index, self.accelerator.num_processes)
        self.agreement = Agreement(ranks, print_on_stderr)
        self._clock = StepClock(devices.synchronize)
        self._generation = 0
        self._batch: BatchRecord | None = None
        self._step_loss = torch.zeros((), device=self.accelerator.device)
        self._recorded_step = 0
        self._seen: dict[str, int] = {}
        self._reward_seconds = 0.0
        self._sampled_since_step = False
        self._resume_point = RunState(generation=0, micro_step=0, step=0)
        self._looks_ahead = staleness > 0 and not self._plain
        self._lookahead: Lookahead | None = None
        self.engine: RolloutEngine | None = None
        self._generate_every = int(self.args.steps_per_generation or 1) * self.num_iterations
        if not self._plain:
            if engine is None or isinstance(engine, (EngineSettings, str)):
                name = engine if isinstance(engine, str) else "vllm" if args.use_vllm else "transformers"
                settings = engine if isinstance(engine, EngineSettings) else None
                self.engine = build_engine(name, needs_of(self, settings))
            else:
                self.engine = engine
            self._sampler = self._make_sampler(self.engine)
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
        evaluation = not self.model.training
        self._batch = BatchRecord(
            rows=inputs,
            label=f"eval-{self._generation}" if evaluation else str(self._generation),
            generation=self._generation,
            step=self.state.global_step + 1,
            rank=self.accelerator.process_index,
        )
        output = super()._generate_and_score_completions(inputs)
        self._batch.advantages = output["advantages"].tolist()
        metrics = self._metrics["eval" if evaluation else "train"]
        for name, value in measure_all(self._batch, self.accelerator, evaluation=evaluation).items():
            metrics[name].append(value)
        if self._recorder is not None:
            records = self._batch.records(self._run_name)
            self._recorder.generation(self._generation, records, evaluation=evaluation)
        self._generation += not evaluation
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
        rows = self._batch.rows
        self._batch.groups = self._groups(prompt_ids, rows, num_generations, self._batch.label)
        self._batch.completions = completions = self.sample(self._batch.groups)
        self._batch.dropped = self._sampler.take_dropped()
        if self.model.training and self._looks_ahead:
            self._sample_ahead(rows, num_generations)
        logps = [list(completion.logps) for completion in completions] if self.use_vllm else None
        return [list(completion.token_ids) for completion in completions], logps

    def sync_engine(self) -> None:
        """Move the current weights into the engine, unless it has them. Collective over all ranks."""
        self._sampler.sync()

    def sample(self, groups: Sequence[LocalGroup], receive: Receive | None = None) -> list[Completion]:
        """Sample all groups, in the order of their places. Each completion is given to `receive` as it ends; by default
        its rewards are started. Collective over all ranks."""
        self._sampled_since_step = True
        return self._sampler.sample(groups, receive)

    def _make_sampler(self, engine: RolloutEngine) -> Sampler:
        decoder = copy.deepcopy(self._tokenizer)  # a tokenizer serves one thread at a time
        sequences: tuple[tuple[int, ...], ...] = ()
        if self._served:
            sequences = canary_sequences(self._first_prompts(), self._tokenizer, self.model.config.get_text_config())
        weights = PolicyWeights(
            self.model,
            self.accelerator,
            self.processing_class,
            steps_done=lambda: self.state.global_step,
            canary_sequences=sequences,
        )
        return Sampler(
            engine,
            weights,
            self.agreement,
            self._clock,
            decode=functools.partial(decoder.decode, skip_special_tokens=True),
            receive=lambda place, row, text: start_rewards(self.reward_funcs, row, text),
            progress=self._recorder.sampled if self._recorder is not None else lambda done, total: None,
        )

    def _first_prompts(self) -> list[list[int]]:
        """Some prompts of the dataset; none of a stream, which is left as it is."""
        rows: Any = self.train_dataset
        first = [rows[place] for place in range(min(8, len(rows)))] if isinstance(rows, Dataset) else []
        return self._prompt_ids(first) if first else []

    def _groups(
        self, prompt_ids: Any, rows: Sequence[Mapping[str, Any]], num_generations: int, label: str
    ) -> list[LocalGroup]:
        return group_requests(
            prompt_ids,
            num_generations,
            self.sampling(),
            label=label,
            rank=self.accelerator.process_index,
            seed=self.args.seed if self.use_vllm and getattr(self.args, "seeded_sampling", True) else None,
            rows=rows,
        )

    def _sample_ahead(self, rows: Sequence[dict[str, Any]], num_generations: int) -> None:
        """Begin to sample the next generation of this epoch, if there is one to be trained on."""
        distance = self._generate_every - self._step % self._generate_every
        last = self.state.max_steps * self.args.gradient_accumulation_steps
        if self._lookahead is None or self._step + distance >= last:
            return
        following = self._lookahead.after(rows, distance)
        if following is not None:
            prompt_ids = self._prompt_ids(following)
            self._sampler.sample_ahead(self._groups(prompt_ids, following, num_generations, str(self._generation + 1)))

    def _prompt_ids(self, rows: Iterable[dict[str, Any]]) -> list[list[int]]:
        prompt_ids: list[list[int]] = self._tokenize_prompts([row["prompt"] for row in rows])[0]
        return prompt_ids

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """See Trainer. With staleness, the batches of the next generation are fetched with this one's."""
        if self._looks_ahead:
            if self._lookahead is None or self._lookahead.batches is not epoch_iterator:
                self._lookahead = Lookahead(epoch_iterator, self._generate_every)
            epoch_iterator = iter(self._lookahead.take(num_batches))
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The sampling settings of `args`."""
        return sampling_settings(self, greedy=greedy)

    def record_evaluation(self, batches: Sequence[BatchRecord], generation: int) -> None:
        """Keep the completions of an evaluation."""
        if self._recorder is not None:
            records = [record for batch in batches for record in batch.records(self._run_name)]
            self._recorder.generation(generation, records, evaluation=True)

    # ---- rewards, log-probabilities and loss -----------------------------------------------------------------------

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        with self._clock.phase("reward_exposed"):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._batch is None:
            return rewards
        local = rewards[self.accelerator.process_index * len(prompts) :][: len(prompts)]
        totals = (local * self.reward_weights.to(local.device)).nansum(dim=1)
        totals[local.isnan().all(dim=1)] = math.nan
        batch = self._batch
        batch.prompts, batch.texts = prompts, completions
        batch.totals = [none_if_nan(total) for total in totals.tolist()]
        batch.rewards = [
            {name: none_if_nan(value) for name, value in zip(self.reward_func_names, row, strict=True)}
            for row in local.tolist()
        ]
        functions: list[Any] = self.reward_funcs
        for reward in functions:
            if isinstance(reward, ScoredReward):
                batch.scores = reward.scores
                self._reward_seconds += reward.seconds
        return rewards

    def _get_per_token_logps_and_entropies(self, *args: Any, **keywords: Any) -> Any:
        if torch.is_grad_enabled():  # part of the update
            return super()._get_per_token_logps_and_entropies(*args, **keywords)
        with self._clock.phase("logps"):
            return super()._get_per_token_logps_and_entropies(*args, **keywords)

    # ---- the step's records -------------------------------------------------------------------------------------

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **keywords: Any) -> torch.Tensor:
        """The algorithm's loss of a micro-batch."""
        if self._plain:
            return super().compute_loss(model, inputs, *args, **keywords)
        return self._algorithm.loss(inputs, functools.partial(super().compute_loss, model, inputs, *args, **keywords))

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's, timed: from here to the end of the optimizer step is `update`, less what nests in it."""
        self._clock.base("update")
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients and not self._plain:
            self._algorithm.adjust_gradients(model)
        self._step_loss += loss
        return loss

    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, *args: Any, **keywords: Any) -> None:
        if self.state.global_step != self._recorded_step:
            self._recorded_step = self.state.global_step
            self._resume_point = RunState(self._generation, self._step, self.state.global_step)
            self._finish_step(grad_norm)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **keywords)
        self._seen = {name: len(values) for name, values in self._metrics["train"].items()}

    def _finish_step(self, grad_norm: Any) -> None:
        self._clock.base("other")
        times = self._clock.finish_step(self._reward_seconds)
        loss = float(self.accelerator.gather(self._step_loss.reshape(1)).mean())
        self._step_loss.zero_()
        self._reward_seconds = 0.0
        engine = self.engine.stats() if self.engine is not None and self._sampled_since_step else None
        self._sampled_since_step = False
        metrics = {"loss": loss, "learning_rate": self._get_learning_rate(), "grad_norm": _number(grad_norm)}
        metrics |= {name: self._this_step(name, values) for name, values in self._metrics["train"].items()}
        for name, seconds in asdict(times).items():
            self._metrics["train"][f"time/{name}"].append(seconds)  # for TRL's loggers
        if self._recorder is not None and self.accelerator.is_main_process:
            self._recorder.step(
                StepRecord(
                    step=self.state.global_step,
                    total_steps=self.state.max_steps,
                    epoch=float(self.state.epoch or 0.0),
                    generation=None if self._plain else self._generation - 1,
                    metrics={name: None if value is None else none_if_nan(value) for name, value in metrics.items()},
                    times=times,
                    engine=engine,
                    device=asdict(devices.use()),
                )
            )
        devices.reset_peak()

    def _this_step(self, name: str, values: list[float]) -> float | None:
        """The mean of what a metric gained in this step; the last value where it gained none."""
        new = values[self._seen.get(name, 0) :] or values[-1:]
        valid = [value for value in new if not math.isnan(value)]
        return sum(valid) / len(valid) if valid else None

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self._looks_ahead and (ahead := self._sampler.finish_ahead()):
            sampled_ahead.save(folder, self.accelerator.process_index, ahead)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            write_json(folder / STATE_FILE, asdict(self._resume_point))  # last: it says that the checkpoint is complete

    def save_last_step(self) -> int:
        """Write a checkpoint of the last whole step, in the middle of one that can't be finished; its number (0: there
        is none). Collective."""
        if not self._plain:
            self._sampler.forget_ahead()
        if self.state.global_step > 0:
            self._save_checkpoint(self.model, trial=None)
        return self.state.global_step

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        accept_cpu_index()
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / STATE_FILE).is_file():
            state = read_state(Path(checkpoint))
            self._generation, self._step, self._recorded_step = state.generation, state.micro_step, state.step
            self._resume_point = state
            if not self._plain:
                self._sampler.keep(sampled_ahead.load(Path(checkpoint), self.accelerator.process_index))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
