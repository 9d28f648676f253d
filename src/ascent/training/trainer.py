"""GRPOTrainer: TRL's, with completions scored while others are still being sampled, and every step accounted for.

One step, in the order of TRL's loop: `training_step` asks `_prepare_inputs` for a batch; each `steps_per_generation` of
them `_generate_and_score_completions` samples a new one (`_generate_single_turn`: weights into the engine, then
sampling, each finished completion going to the reward at once), takes the old and reference log-probabilities, collects
the rewards (`_calculate_rewards`) and makes advantages; loss, backward and optimizer step are TRL's, unchanged. What is
overridden is listed in `trl_overrides`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from trl.generation.vllm_generation import VLLMGeneration
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig as TRLConfig
from trl.trainer.grpo_trainer import GRPOTrainer as TRLTrainer

from ascent import devices
from ascent.compat.cpu_index import accept_cpu_index
from ascent.compat.float_masks import keep_float_masks
from ascent.compat.trl_on_npu import refuse_on_npu
from ascent.errors import InputError
from ascent.rewards.code import CodeReward
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.tracking.run_directory import STATE_FILE, RunState, read_state, write_json
from ascent.training.arguments import GRPOConfig
from ascent.training.batch_record import BatchRecord, none_if_nan
from ascent.training.clock import Phase, StepClock
from ascent.training.recording import Recorder, StepRecord
from ascent.training.requests import LocalGroup, group_requests
from ascent.types import Completion, Sampling

_TAKE_PLAIN = "Set plain=True in GRPOConfig to take TRL's own path."


class GRPOTrainer(TRLTrainer):
    """TRL's `GRPOTrainer` with Ascent's engine seam, streamed rewards and records.

    Arguments are TRL's. Beside them: `engine` says how vLLM is built (default: from the `vllm_*` fields of `args`),
    `recorder` receives steps and completions, `run_name` stands in sample ids. With `args.plain` everything is TRL's.
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
        engine: EngineSettings | None = None,
        recorder: Recorder | None = None,
        run_name: str = "run",
        **keywords: Any,
    ) -> None:
        """Raises InputError for what only TRL's own path can do: server mode, tools, rollout functions."""
        args = copy.copy(args) if args is not None else GRPOConfig("grpo")
        self._plain = bool(getattr(args, "plain", False))
        self._recorder, self._run_name = recorder, run_name
        wants_vllm = engine is not None or args.use_vllm
        if not self._plain:
            _refuse_what_only_trl_can(args, keywords)
            args.use_vllm = False  # TRL must not build an engine of its own
        keep_float_masks()
        refuse_on_npu(args)
        # Without this TRL lets every process of a multi-NPU run spread its model over all NPUs.
        init_kwargs: Any = args.model_init_kwargs or {}
        args.model_init_kwargs = {"device_map": None, **init_kwargs}
        super().__init__(model, reward_funcs, args, *positional, **keywords)
        self._clock = StepClock(devices.synchronize)
        self._generation = 0
        self._batch: BatchRecord | None = None
        self._step_loss = torch.zeros((), device=self.accelerator.device)
        self._recorded_step = 0
        self._seen: dict[str, int] = {}
        self._reward_seconds = 0.0
        self._sampled_since_step = False
        self.engine: RolloutEngine | None = None
        if not self._plain:
            self._last_loaded_step = -1
            self.use_vllm = self.args.use_vllm = wants_vllm  # from here on: importance sampling correction
            self._parameters = _ParameterWalk(self.model, self.accelerator, self.processing_class)
            self.engine = self._vllm_engine(engine) if wants_vllm else self._transformers_engine()
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
            raise InputError("images in prompts: not available with Ascent's engine in this version", _TAKE_PLAIN)
        assert self._batch is not None
        self.sync_engine()
        self._batch.groups = group_requests(
            prompt_ids,
            num_generations,
            self.sampling(),
            label=self._batch.label,
            rank=self.accelerator.process_index,
            seed=self.args.seed if self.use_vllm and getattr(self.args, "seeded_sampling", True) else None,
        )
        rows = self._batch.rows
        self._batch.completions = self.sample(
            self._batch.groups, lambda place, text: self._start_reward(rows[place], text)
        )
        completions = self._batch.completions
        logps = [list(completion.logps) for completion in completions] if self.use_vllm else None
        return [list(completion.token_ids) for completion in completions], logps

    def sync_engine(self) -> None:
        """Move the current weights into the engine, unless it has them. Collective over all processes."""
        assert self.engine is not None
        if self.state.global_step != self._last_loaded_step:
            with self._clock.phase("sync"):
                self.engine.update_weights(self._parameters.named_tensors(), version=self.state.global_step)
            self._last_loaded_step = self.state.global_step

    def sample(
        self, groups: Sequence[LocalGroup], finished: Callable[[int, Any], None] = lambda place, text: None
    ) -> list[Completion]:
        """Sample all groups; `finished(place, text)` is called as each completion ends. In order of their places."""
        assert self.engine is not None
        places = {group.request.group_id: group.first for group in groups}
        total = sum(group.request.n for group in groups)
        sampled: dict[int, Completion] = {}
        with self._clock.phase("generate"):
            self.engine.submit([group.request for group in groups])
            while len(sampled) < total:
                for completion in self.engine.poll():
                    place = places[completion.group_id] + completion.index
                    sampled[place] = completion
                    finished(place, self._tokenizer.decode(completion.token_ids, skip_special_tokens=True))
                    if self._recorder is not None:
                        self._recorder.sampled(len(sampled), total)
        self._sampled_since_step = True
        return [sampled[place] for place in range(total)]

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The sampling settings of `args`."""
        extra: Any = self.args.generation_kwargs or {}
        return Sampling(
            max_tokens=int(self.max_completion_length or self._context()),
            temperature=0.0 if greedy else self.temperature,
            top_p=1.0 if greedy else self.top_p,
            top_k=0 if greedy else self.top_k,
            min_p=0.0 if greedy else self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty,
            stop_token_ids=tuple(self.eos_token_ids) if self.use_vllm else (),
            extra=tuple(extra.items()),
        )

    def record_evaluation(self, batches: Sequence[BatchRecord], generation: int) -> None:
        """Keep the completions of an evaluation."""
        if self._recorder is not None:
            records = [record for batch in batches for record in batch.records(self._run_name)]
            self._recorder.generation(generation, records, evaluation=True)

    # ---- rewards and log-probabilities --------------------------------------------------------------------------

    def _start_reward(self, row: dict[str, Any], text: str) -> None:
        for reward in self._code_rewards():
            if "task_id" not in row:
                raise InputError(
                    "the dataset has no column task_id, by which CodeReward finds a completion's tests",
                    "Make it with ascent.training.policy_tasks.to_dataset(tasks), or add the column.",
                )
            reward.start(row["task_id"], text)

    def _code_rewards(self) -> Iterable[CodeReward]:
        return (function for function in self.reward_funcs if isinstance(function, CodeReward))

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
        for reward in self._code_rewards():
            batch.scores = reward.scores
            self._reward_seconds += reward.seconds
            self._note_pass_rate(reward)
        return rewards

    def _note_pass_rate(self, reward: CodeReward) -> None:
        """The share of completions that pass all tests, over all processes; what could not be judged is left out."""
        judged = [score.verdict for score in reward.scores if score.verdict and not score.verdict.infrastructure_error]
        counts = torch.tensor([float(sum(v.all_passed for v in judged)), len(judged)], device=self.accelerator.device)
        passed, total = self.accelerator.reduce(counts, reduction="sum").tolist()
        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["pass_rate"].append(passed / total if total else math.nan)

    def _get_per_token_logps_and_entropies(self, *args: Any, **keywords: Any) -> Any:
        if torch.is_grad_enabled():  # part of the update
            return super()._get_per_token_logps_and_entropies(*args, **keywords)
        with self._clock.phase("logps"):
            return super()._get_per_token_logps_and_entropies(*args, **keywords)

    # ---- the step's records -------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's, timed: from here to the end of the optimizer step is `update`, less what nests in it."""
        self._clock.base("update")
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._step_loss += loss
        return loss

    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, *args: Any, **keywords: Any) -> None:
        if self.state.global_step != self._recorded_step:
            self._recorded_step = self.state.global_step
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
        super()._save_checkpoint(model, trial)
        if self.accelerator.is_main_process:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            state = RunState(generation=self._generation, micro_step=self._step, step=self.state.global_step)
            write_json(folder / STATE_FILE, asdict(state))  # last: it says that the checkpoint is complete

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        accept_cpu_index()
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / STATE_FILE).is_file():
            state = read_state(Path(checkpoint))
            self._generation, self._step, self._recorded_step = state.generation, state.micro_step, state.step

    # ---- engines ------------------------------------------------------------------------------------------------

    def _vllm_engine(self, settings: EngineSettings | None) -> RolloutEngine:
        from ascent.rollout.local import LocalEngine
        from ascent.training.engine_settings import from_arguments

        return LocalEngine(settings or from_arguments(self.args, self.model, self.accelerator.num_processes))

    def _transformers_engine(self) -> RolloutEngine:
        from ascent.rollout.transformers_engine import TransformersEngine

        checkpointing: Any = self.args.gradient_checkpointing_kwargs
        return TransformersEngine(
            lambda: unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                generation_kwargs=self.generation_kwargs,
                gradient_checkpointing_kwargs=checkpointing,
            ),
            eos_token_ids=self.eos_token_ids,
            pad_token_id=self._tokenizer.pad_token_id,
            bos_token_id=self._tokenizer.bos_token_id,
            max_model_len=self._context(),
        )

    def _context(self) -> int:
        return int(self.model.config.get_text_config().max_position_embeddings)


class _ParameterWalk(VLLMGeneration):
    """TRL's walk over a model's full parameters (PEFT merged, FSDP and ZeRO gathered), without its engine."""

    def _init_vllm(self) -> None: ...

    def named_tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        """(checkpoint name, full tensor) of every parameter. Collective: every process must iterate to the end."""
        return self._iter_named_params()


def _refuse_what_only_trl_can(args: TRLConfig, keywords: dict[str, Any]) -> None:
    only_plain = [name for name in ("tools", "rollout_func", "environment_factory") if keywords.get(name)]
    if args.use_vllm and args.vllm_mode == "server":
        only_plain.append('vllm_mode="server"')
    if args.use_transformers_continuous_batching:
        only_plain.append("use_transformers_continuous_batching")
    if only_plain:
        raise InputError(
            f"{', '.join(only_plain)}: not available with Ascent's engine in this version",
            _TAKE_PLAIN,
        )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
