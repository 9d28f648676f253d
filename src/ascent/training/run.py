"""One training run, from its configuration to its end. Reads from top to bottom."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ascent import devices
from ascent.algorithms.base import Algorithm
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.models.folder import load_tokenizer, model_folder
from ascent.models.starter.building import check_unseen
from ascent.report.ending import show_ending
from ascent.rewards.base import RewardFunction, RewardInputs
from ascent.rewards.code import CodeReward
from ascent.rewards.loading import load_rewards
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.rollout.platform import engine_kind
from ascent.rollout.prerequisites import check_cpu_engine
from ascent.rollout.weights.adapters import refuse_head_adapter
from ascent.sandbox import Sandbox
from ascent.sandbox.errors import SandboxError
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.arguments import GRPOConfig
from ascent.training.engines.settings import from_config, sampled_at_once
from ascent.training.evaluation import Evaluation, evaluate, save_evaluations, saved_before
from ascent.training.export import save_trained_model
from ascent.training.launch.stopping import StopAtStepEnd
from ascent.training.origin import record_origin
from ascent.training.policy_tasks import RunTasks, prompts_open_thought, run_tasks, to_dataset
from ascent.training.records.evaluations import check_evaluation_batch
from ascent.training.records.out_of_memory import explain_out_of_memory
from ascent.training.records.progress import StepProgress
from ascent.training.records.recorder import RunRecorder
from ascent.training.trainer import GRPOTrainer
from ascent.types import Task


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of a run. `after` is None when it was stopped before its end."""

    run: RunDirectory
    stopped: bool
    before: Evaluation | None
    after: Evaluation | None


def train(
    config: RunConfig,
    run: RunDirectory,
    *,
    resume: bool = False,
    notes: Sequence[str] = (),
) -> RunResult:
    """Train as `config` says, in the run directory `run`.

    With `resume` it goes on from the last complete checkpoint; what lies beyond it moves to `discarded/`. Raises
    InputError for what the user can mend.
    """
    args = _arguments(config, run)
    say = _speaker(args)
    for note in notes:
        say(f"note: {note}")
    if config.rollout.engine == "vllm" and engine_kind() == "cpu":
        check_cpu_engine()
    check_unseen(config.model.path, config.tasks.train, config.tasks.held_out, config.tasks.seed)
    checkpoint = _prepare_resume(run, args, say) if resume else None
    folder = model_folder(config.model.path, config.model.revision)
    tokenizer = load_tokenizer(folder, trust_remote_code=config.model.trust_remote_code)
    context = _context(folder, config)
    tasks = run_tasks(
        config.tasks,
        tokenizer,
        context=config.rollout.max_model_len or context,
        completion=args.max_completion_length or 1,
        shown=config.tracking.eval_tasks if config.tracking.evaluate or _trl_evaluates(args) else 0,
    )
    for note in tasks.notes:
        say(f"note: {note}")
    say(f"{len(tasks.train)} training tasks, {len(tasks.held_out)} held out; {config.model.path}; {devices.name()}")
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(_open_sandbox(config))
        say(f"sandbox: {sandbox.slots} slots, {sandbox.level}")
        tasks = _judgeable(tasks, sandbox, say)
        _check_enough_tasks(tasks, args)
        _check_held_out(tasks, args)
        if args.process_index == 0:
            record_origin(run, config, folder, tasks, checkpoint=checkpoint)
        opens_thought = prompts_open_thought(tasks.train, tokenizer, args.chat_template_kwargs)
        inputs = RewardInputs((*tasks.train, *tasks.held_out), config.reward, sandbox, opens_thought)
        rewards = load_rewards(inputs)
        judge = next((each for each in rewards if isinstance(each, CodeReward)), None) or CodeReward.for_run(inputs)
        recorder = RunRecorder(run, args.process_index)
        stack.callback(recorder.close)
        engine = stack.enter_context(_engine(config, args, run, folder, tasks, context))
        say(f"loading the model{' and starting vLLM' if isinstance(engine, EngineSettings) else ''}")
        with explain_out_of_memory(config, args, run, lambda: (0, "other")):
            trainer = _trainer(config, args, folder, tokenizer, tasks, engine, rewards, recorder)
        sandbox.keep_off_engines()
        if trainer.engine is not None:
            stack.callback(trainer.engine.close)
        try:
            with explain_out_of_memory(config, args, run, lambda: (trainer.state.global_step + 1, trainer.phase)):
                return _train(trainer, config, tasks, judge, recorder, checkpoint, say)
        except Exception as error:
            if error is not trainer.agreement.ended_with:
                raise  # this process's own affair: its launcher ends the others
            raise _stopped_by_engine(trainer, run, error) from error


def _train(
    trainer: GRPOTrainer,
    config: RunConfig,
    tasks: RunTasks,
    judge: CodeReward,
    recorder: RunRecorder,
    checkpoint: Path | None,
    say: Any,
) -> RunResult:
    def measure(when: str) -> Evaluation | None:
        if not config.tracking.evaluate or not tasks.held_out or trainer.engine is None:
            return None
        result = evaluate(trainer, judge, tasks.held_out, samples=config.tracking.eval_samples, name=when)
        say(f"held-out pass rate {when}: greedy {result.greedy:.1%}, sampled {result.sampled:.1%}")
        return result

    main = trainer.accelerator.is_main_process
    if checkpoint is None:
        before = measure("before")
        if main and before is not None:  # kept now, so that a run that is resumed can still compare
            save_evaluations(recorder.run, before, None)
    else:
        before = saved_before(recorder.run)
    stop = StopAtStepEnd(trainer.agreement.ranks)
    trainer.add_callback(stop)
    with stop.listening(), _progress(trainer, recorder):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if stop.stopped and trainer.state.global_step < trainer.state.max_steps:
        say(f"stopped after step {trainer.state.global_step}; go on with: ascent train --resume {recorder.run.path}")
        return RunResult(recorder.run, True, before, None)
    after = measure("after")
    if main and after is not None:
        save_evaluations(recorder.run, before, after)
    save_trained_model(trainer, recorder.run, config)
    if main:
        show_ending(recorder.run.path)
    return RunResult(recorder.run, False, before, after)


def _stopped_by_engine(trainer: GRPOTrainer, run: RunDirectory, error: Exception) -> InputError:
    """Sampling can't go on, and every process of the training knows it: keep the last whole step and say so."""
    step = trainer.save_last_step()
    if not step:
        return InputError(f"sampling ended before the first step: {error}", "Once that is mended, start the run again.")
    mend = f"Step {step} is kept. Once that is mended: ascent train --resume {run.path}"
    return InputError(f"sampling ended after step {step}: {error}", mend)


def _arguments(config: RunConfig, run: RunDirectory) -> GRPOConfig:
    """GRPOConfig of the run: what the configuration gives, and Ascent's defaults where TRL's don't fit."""
    on_cpu = devices.kind() == "cpu"
    given = dict(config.trainer)
    defaults: dict[str, Any] = {
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 50,
        "use_cpu": on_cpu,
    }
    if not devices.supports_bf16():  # where it is emulated it is several times slower
        defaults["bf16"] = False
    if on_cpu:
        defaults["optim"] = "adamw_torch"
    init: dict[str, Any] = {"dtype": "float32" if config.model.dtype == "auto" else config.model.dtype}
    if config.model.attn_implementation:
        init["attn_implementation"] = config.model.attn_implementation
    given["model_init_kwargs"] = {**init, **(given.get("model_init_kwargs") or {})}
    given.setdefault("trust_remote_code", config.model.trust_remote_code)
    if not given.get("plain"):
        given["use_vllm"] = config.rollout.engine == "vllm"
    if len(config.reward.functions) > 1 or config.reward.functions[0].weight != 1.0:
        given["reward_weights"] = [each.weight for each in config.reward.functions]
    try:
        return GRPOConfig(**{**defaults, **given, "output_dir": str(run.checkpoints)})
    except (ValueError, TypeError) as error:
        raise InputError(f"trainer: {error}") from error


def _trainer(
    config: RunConfig,
    args: GRPOConfig,
    folder: Path,
    tokenizer: Any,
    tasks: RunTasks,
    engine: EngineSettings | RolloutEngine | str | None,
    rewards: Sequence[RewardFunction],
    recorder: RunRecorder,
) -> GRPOTrainer:
    peft_config = None
    if config.model.lora is not None:
        from peft import LoraConfig

        peft_config = LoraConfig(task_type="CAUSAL_LM", **config.model.lora.model_dump())
        refuse_head_adapter(peft_config)
    return GRPOTrainer(
        str(folder),
        list(rewards),
        args,
        train_dataset=to_dataset(tasks.train),
        eval_dataset=to_dataset(tasks.held_out) if _trl_evaluates(args) else None,
        processing_class=tokenizer,
        peft_config=peft_config,
        engine=engine,
        staleness=config.rollout.staleness,
        verify=config.rollout.verify,
        algorithm=cast(Algorithm, config.algorithm),  # a class of ascent.tables.ALGORITHMS
        recorder=recorder,
        run_name=recorder.run.path.name,
    )


@contextlib.contextmanager
def _engine(
    config: RunConfig, args: GRPOConfig, run: RunDirectory, folder: Path, tasks: RunTasks, context: int
) -> Iterator[EngineSettings | RolloutEngine | str | None]:
    """How vLLM is built, the servers that sample, or another engine's name; None for transformers and for TRL's own."""
    if args.plain or config.rollout.engine == "transformers":
        yield None
        return
    if config.rollout.engine != "vllm":
        yield config.rollout.engine
        return
    settings = from_config(
        config,
        str(folder),
        model_dtype=_model_dtype(args),
        batch=sampled_at_once(args),
        longest_prompt=tasks.longest_prompt,
        completion=args.max_completion_length or context,
        context=context,
        num_processes=args.world_size,
    )
    if config.rollout.mode == "colocate":
        yield settings
        return
    from ascent.training.engines.servers import serving

    with serving(config, settings, run, rank=args.process_index, processes=args.world_size) as engine:
        yield engine


def _check_enough_tasks(tasks: RunTasks, args: GRPOConfig) -> None:
    """A generation takes different prompts; with fewer tasks than that TRL's sampler would give none."""
    assert args.generation_batch_size is not None  # TRL has filled it in
    assert args.num_generations is not None
    prompts = args.generation_batch_size // args.num_generations
    if len(tasks.train) < prompts:
        raise InputError(
            f"{len(tasks.train)} training tasks, but a generation takes {prompts} different ones "
            f"({args.generation_batch_size} completions / num_generations={args.num_generations})",
            "Lower trainer.per_device_train_batch_size, or add tasks.",
        )


def _trl_evaluates(args: GRPOConfig) -> bool:
    """Whether TRL evaluates too, in between."""
    return args.eval_strategy != "no" or args.eval_on_start


def _check_held_out(tasks: RunTasks, args: GRPOConfig) -> None:
    if _trl_evaluates(args):
        if not tasks.held_out:
            raise InputError(
                "trainer.eval_strategy and trainer.eval_on_start evaluate on held-out tasks, but there are none",
                "Hold some out with tasks.held_out.",
            )
        check_evaluation_batch(args, args.num_generations_eval or args.num_generations or 1)


def _model_dtype(args: GRPOConfig) -> str:
    init: Any = args.model_init_kwargs
    return str(init["dtype"])


def _open_sandbox(config: RunConfig) -> Sandbox:
    settings = config.sandbox
    try:
        return Sandbox(
            slots=settings.slots,
            limits=settings.limits(),
            require=settings.require,
            packages=settings.packages,
            allow_in_process=settings.allow_in_process,
        )
    except SandboxError as error:
        raise InputError(f"sandbox: {error}") from error


def _judgeable(tasks: RunTasks, sandbox: Sandbox, say: Any) -> RunTasks:
    """The tasks whose tests this sandbox can run; the others are left out and told."""
    refused: list[str] = []

    def keep(task: Task) -> bool:
        try:
            sandbox.check(task.language, task.tests, task.prelude)
        except SandboxError as error:
            refused.append(f"{task.id}: {error}")
            return False
        return True

    kept = replace(tasks, train=tuple(filter(keep, tasks.train)), held_out=tuple(filter(keep, tasks.held_out)))
    if refused:
        say(f"note: {len(refused)} tasks left out, because their tests can't be run (first: {refused[0]})")
    if not kept.train:
        raise InputError(f"no training task is left whose tests can be run; {refused[0]}")
    return kept


@contextlib.contextmanager
def _progress(trainer: GRPOTrainer, recorder: RunRecorder) -> Iterator[None]:
    if not trainer.accelerator.is_main_process:
        yield
        return
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)  # the steps are shown here
    with StepProgress() as progress:
        recorder.watchers.append(progress.step)
        recorder.on_sampled = progress.sampled
        yield


def _prepare_resume(run: RunDirectory, args: GRPOConfig, say: Any) -> Path | None:
    checkpoint = run.last_checkpoint()
    state = None if checkpoint is None else run_directory.read_state(checkpoint)
    args.distributed_state.wait_for_everyone()  # all have read which one it is
    if args.process_index == 0:
        discarded = run_directory.discard_after(run, state)
        if discarded is not None:
            say(f"moved what lies beyond the checkpoint to {discarded}")
    args.distributed_state.wait_for_everyone()
    say(f"resuming after step {state.step}" if state else "no complete checkpoint: starting anew")
    return checkpoint


def _context(folder: Path, config: RunConfig) -> int:
    """The model's own limit of prompt and completion, in tokens."""
    from transformers import AutoConfig

    try:
        loaded = AutoConfig.from_pretrained(folder, trust_remote_code=config.model.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: its config.json can't be used: {error}") from error
    return int(loaded.get_text_config().max_position_embeddings)


def _speaker(args: GRPOConfig) -> Any:
    def say(text: str) -> None:
        if args.process_index == 0:
            print(text, file=sys.stderr, flush=True)

    return say
