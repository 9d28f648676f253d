"""One training run, from its configuration to its end. Reads from top to bottom."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from ascent import devices
from ascent.alarms.alarm import Alarm
from ascent.alarms.markers import markers
from ascent.algorithms.base import Algorithm
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.memory.plan import Plan
from ascent.models.folder import load_tokenizer, longest_context, model_folder
from ascent.models.starter.building import check_unseen
from ascent.report.ending import show_ending
from ascent.rewards.base import RewardFunction, RewardInputs
from ascent.rewards.code import CodeReward
from ascent.rewards.loading import load_rewards
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.rollout.platform import engine_kind
from ascent.rollout.prerequisites import check_cpu_engine
from ascent.rollout.weights.adapters import refuse_head_adapter
from ascent.sandbox.judges import Judges
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.tracking.task_file import record_tasks
from ascent.tracking.trackers.guard import Beside, guard_trackers
from ascent.tracking.trackers.names import check_names, named
from ascent.tracking.trackers.places import PROJECT
from ascent.training.arguments import GRPOConfig
from ascent.training.engines.settings import from_config, sampled_at_once
from ascent.training.evaluation import Evaluation, save_evaluations, saved_before
from ascent.training.export import save_trained_model
from ascent.training.held_out import HeldOut, check_held_out, trl_evaluates
from ascent.training.judging import judgeable, open_judges
from ascent.training.launch.stopping import StopAtStepEnd
from ascent.training.numerics.guard import NotFiniteError
from ascent.training.origin import record_origin
from ascent.training.planning import cap_allocator, plan_run, take_tokens
from ascent.training.policy_tasks import RunTasks, prompts_open_thought, run_tasks, to_dataset
from ascent.training.records.alarms import LiveAlarms, watch
from ascent.training.records.memory import MemoryFile
from ascent.training.records.out_of_memory import explain_out_of_memory
from ascent.training.records.program_notes import ProgramNotes
from ascent.training.records.progress import StepProgress
from ascent.training.records.recorder import RunRecorder
from ascent.training.records.report_file import write_report
from ascent.training.trainer import GRPOTrainer

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run before its first step: the model is loaded, the engine runs. `checkpoint` is what it goes on from, `plan`
    that of its memory, where there is one; `say` takes a sentence to the user."""

    config: RunConfig
    trainer: GRPOTrainer
    tasks: RunTasks
    judge: CodeReward
    recorder: RunRecorder
    alarms: LiveAlarms | None
    checkpoint: Path | None
    plan: Plan | None
    say: Say


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
    with prepared(config, run, resume=resume, notes=notes) as ready:
        return _train(ready)


@contextlib.contextmanager
def prepared(
    config: RunConfig, run: RunDirectory, *, resume: bool = False, notes: Sequence[str] = ()
) -> Iterator[Prepared]:
    """Everything of a run but its steps, which are made inside. What ends them there is told as of a run: memory that
    ran out, an engine that can't go on, numbers that aren't finite. Raises InputError for what the user can mend."""
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
    made = take_tokens(args, plan_run(config, args, folder, say))
    cap_allocator(config, made)
    context = longest_context(folder, trust_remote_code=config.model.trust_remote_code)
    tasks = _tasks(config, args, tokenizer, context, say)
    say(f"{len(tasks.train)} training tasks, {len(tasks.held_out)} held out; {config.model.path}; {devices.name()}")
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(open_judges(config.sandbox, config.cluster))
        say(f"sandbox: {sandbox.slots} slots, {sandbox.level}")
        tasks = _judgeable(tasks, sandbox, say)
        _check_enough_tasks(tasks, args)
        check_held_out(tasks, config.tracking, args)
        if args.process_index == 0:
            record_origin(run, config, folder, tasks, checkpoint=checkpoint)
            step = 0 if checkpoint is None else run_directory.step_of(checkpoint)
            record_tasks(run.tasks, tasks.train, tasks.held_out, step=step)
        opens_thought = prompts_open_thought(tasks.train, tokenizer, args.chat_template_kwargs)
        inputs = RewardInputs((*tasks.train, *tasks.held_out), config.reward, sandbox, opens_thought)
        rewards = load_rewards(inputs)
        judge = next((each for each in rewards if isinstance(each, CodeReward)), None) or CodeReward.for_run(inputs)
        found = ProgramNotes(inputs.tasks, judge.audited, markers)
        recorder = RunRecorder(run, args.process_index, found, tells_alarms=True)
        recorder.watchers.append(MemoryFile(run, made).step)
        stack.callback(recorder.close)
        alarms = watch(recorder, config, folder, say)
        engine = stack.enter_context(_engine(config, args, run, folder, tasks, context))
        say(f"loading the model{' and starting vLLM' if isinstance(engine, EngineSettings) else ''}")
        with explain_out_of_memory(config, args, run, made, lambda: (0, "other")):
            trainer = _trainer(config, args, folder, tokenizer, tasks, engine, rewards, recorder)
        sandbox.keep_off_engines()
        if trainer.engine is not None:
            stack.callback(trainer.engine.close)
        try:
            with explain_out_of_memory(config, args, run, made, lambda: (trainer.state.global_step + 1, trainer.phase)):
                yield Prepared(config, trainer, tasks, judge, recorder, alarms, checkpoint, made, say)
        except NotFiniteError as error:
            raise _stopped_by_numbers(run, error) from error
        except Exception as error:
            if error is not trainer.agreement.ended_with:
                raise  # this process's own affair: its launcher ends the others
            raise _stopped_by_engine(trainer, run, error) from error


def _train(ready: Prepared) -> RunResult:
    trainer, config, recorder = ready.trainer, ready.config, ready.recorder
    checkpoint, say = ready.checkpoint, ready.say
    beside = Beside(recorder.run.trackers, lambda: recorder.evidence, say)
    guard_trackers(trainer, named(trainer.args.report_to), beside)
    held_out = HeldOut(trainer, ready.judge, ready.tasks.held_out, config.tracking, say)
    trainer.after_step = held_out.after_step
    main = trainer.accelerator.is_main_process
    if checkpoint is None:
        before = held_out.measure("before")
        if main and before is not None:  # kept now, so that a run that is resumed can still compare
            save_evaluations(recorder.run, before, None)
    else:
        before = saved_before(recorder.run)
    stop = StopAtStepEnd(trainer.agreement.ranks)
    trainer.add_callback(stop)
    with stop.listening(), showing_progress(trainer, recorder):
        if ready.alarms is not None:
            ready.alarms.heard = lambda alarm: _stop_on(alarm, config, stop)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if stop.stopped and trainer.state.global_step < trainer.state.max_steps:
        why, command = f" ({stop.why})" if stop.why else "", f"ascent train --resume {recorder.run.path}"
        say(f"stopped after step {trainer.state.global_step}{why}; go on with: {command}")
        return RunResult(recorder.run, True, before, None)
    after = held_out.measure("after")
    if main and after is not None:
        save_evaluations(recorder.run, before, after)
    save_trained_model(trainer, recorder.run, config)
    if main:
        if config.tracking.report:
            write_report(recorder.run, say)
        show_ending(recorder.run.path)
    return RunResult(recorder.run, False, before, after)


def _stop_on(alarm: Alarm, config: RunConfig, stop: StopAtStepEnd) -> None:
    if alarm.level in config.alarms.stop_on:
        stop.ask(f"alarm {alarm.name}, for alarms.stop_on")


def _stopped_by_engine(trainer: GRPOTrainer, run: RunDirectory, error: Exception) -> InputError:
    """Sampling can't go on, and every process of the training knows it: keep the last whole step and say so."""
    step = trainer.save_last_step()
    if not step:
        return InputError(f"sampling ended before the first step: {error}", "Once that is mended, start the run again.")
    mend = f"Step {step} is kept. Once that is mended: ascent train --resume {run.path}"
    return InputError(f"sampling ended after step {step}: {error}", mend)


def _stopped_by_numbers(run: RunDirectory, error: NotFiniteError) -> InputError:
    """The checkpoint is written; every process of the training ends alike."""
    return InputError(
        f"the run ended: {error}",
        f"What was not finite is told above and in {run.bad_steps}/STEP/step.json; `ascent replay {run.path} STEP` "
        f"repeats a step. Once that is mended: ascent train --resume {run.path}",
    )


def _arguments(config: RunConfig, run: RunDirectory) -> GRPOConfig:
    """GRPOConfig of the run: what the configuration gives, and Ascent's defaults where TRL's don't fit."""
    on_cpu = devices.kind() == "cpu"
    given = dict(config.trainer)
    defaults: dict[str, Any] = {
        "report_to": "none",
        "run_name": run.path.name,
        "project": PROJECT,
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 50,
        "use_cpu": on_cpu,
    }
    # where it is emulated it is several times slower
    if not devices.supports_bf16() and not given.get("npu_optim_level"):
        defaults["bf16"] = False
    if on_cpu:
        defaults["optim"] = "adamw_torch"
    init: dict[str, Any] = {"dtype": "float32" if config.model.dtype == "auto" else config.model.dtype}
    if config.model.attn_implementation:
        init["attn_implementation"] = config.model.attn_implementation
    if config.model.head_dtype == "float32":
        given["cast_lm_head_to_fp32"] = True
    given["model_init_kwargs"] = {**init, **(given.get("model_init_kwargs") or {})}
    given.setdefault("trust_remote_code", config.model.trust_remote_code)
    if not given.get("plain"):
        given["use_vllm"] = config.rollout.engine == "vllm"
    if len(config.reward.functions) > 1 or config.reward.functions[0].weight != 1.0:
        given["reward_weights"] = [each.weight for each in config.reward.functions]
    try:
        args = GRPOConfig(**{**defaults, **given, "output_dir": str(run.checkpoints)})
    except (ValueError, TypeError) as error:
        raise InputError(f"trainer: {error}") from error
    check_names(cast(list[str], args.report_to), INTEGRATION_TO_CALLBACK)  # a list, once the arguments are made
    return args


def _tasks(config: RunConfig, args: GRPOConfig, tokenizer: Any, context: int, say: Say) -> RunTasks:
    """The tasks that fit into the model's `context` tokens."""
    tasks = run_tasks(
        config.tasks,
        tokenizer,
        context=config.rollout.max_model_len or context,
        completion=args.max_completion_length or 1,
        shown=config.tracking.eval_tasks if config.tracking.evaluate or trl_evaluates(args) else 0,
    )
    for note in tasks.notes:
        say(f"note: {note}")
    return tasks


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
        eval_dataset=to_dataset(tasks.held_out) if trl_evaluates(args) else None,
        processing_class=tokenizer,
        peft_config=peft_config,
        engine=engine,
        staleness=config.rollout.staleness,
        verify=config.rollout.verify,
        offload=config.memory.offload,
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
        args=args,
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


def _model_dtype(args: GRPOConfig) -> str:
    init: Any = args.model_init_kwargs
    return str(init["dtype"])


def _judgeable(tasks: RunTasks, sandbox: Judges, say: Say) -> RunTasks:
    """The tasks whose tests this sandbox can run; the others are left out and told."""
    (train, not_train), (held_out, not_held_out) = (judgeable(each, sandbox) for each in (tasks.train, tasks.held_out))
    refused = not_train + not_held_out
    if refused:
        say(f"note: {len(refused)} tasks left out, because their tests can't be run (first: {refused[0]})")
    if not train:
        raise InputError(f"no training task is left whose tests can be run; {refused[0]}")
    return replace(tasks, train=train, held_out=held_out)


@contextlib.contextmanager
def showing_progress(trainer: GRPOTrainer, recorder: RunRecorder) -> Iterator[None]:
    """A line for each step, and on a terminal a bar; on the main process."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)  # the steps are shown here; it would print them once a machine
    if not trainer.accelerator.is_main_process:
        yield
        return
    with StepProgress() as progress:
        recorder.watchers.insert(0, progress.step)  # an alarm is told below its step
        recorder.on_sampled = progress.sampled
        yield


def _prepare_resume(run: RunDirectory, args: GRPOConfig, say: Say) -> Path | None:
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


def _speaker(args: GRPOConfig) -> Say:
    def say(text: str) -> None:
        if args.process_index == 0:
            print(text, file=sys.stderr, flush=True)

    return say
