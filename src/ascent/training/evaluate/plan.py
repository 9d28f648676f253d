"""How an evaluation samples and judges: what the command line says, else as the run trained, else defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ascent.config import RunConfig
from ascent.config.sections import SandboxSection, TasksSection
from ascent.errors import InputError
from ascent.rollout.platform import engine_kind
from ascent.tasks.loading import check_sources, is_builtin

_TEMPERATURE, _SEED = 1.0, 42
_MAX_TOKENS = 512
_USUAL_K = (1, 5, 10)
_MOST_SAMPLES = 100_000  # of a task; beyond, a number is a slip of the pen
_BATCH = {"cpu": 64}  # completions sampled at once: a kill loses no more than these
_BATCH_ON_DEVICE = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks; None: not said. `tasks` may be absent for a run, which has held-out ones."""

    model: str
    tasks: str | None = None
    samples: int = 10
    k: tuple[int, ...] | None = None
    greedy: bool = True
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    engine: Literal["vllm", "transformers"] = "vllm"
    dtype: str | None = None
    batch: int | None = None
    limit: int | None = None
    packages: tuple[str, ...] = ()
    trust_remote_code: bool = False
    against: str | None = None
    out: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The same for both where two are compared. `held_out` says that of `tasks` only the held-out half is asked."""

    tasks: TasksSection
    held_out: bool
    sandbox: SandboxSection
    samples: int
    k: tuple[int, ...]
    greedy: bool
    max_tokens: int
    seed: int
    sampling: Mapping[str, float]  # temperature, top_p, top_k, min_p, repetition_penalty
    template: Mapping[str, Any]  # arguments of the chat template
    engine: Literal["vllm", "transformers"]
    dtype: str
    batch: int
    limit: int | None
    trust_remote_code: bool


def make_plan(asked: Asked, config: RunConfig | None, *, context: int) -> Plan:
    """`config` is that of the run which trained what is evaluated, `context` the model's limit in tokens. Raises
    InputError for what can't be done."""
    _check(asked)
    trainer: Mapping[str, Any] = {} if config is None else config.trainer
    sampling = {
        "temperature": float(trainer.get("temperature", _TEMPERATURE))
        if asked.temperature is None
        else asked.temperature,
        "top_p": float(trainer.get("top_p", 1.0)),
        "top_k": int(trainer.get("top_k", 0)),
        "min_p": float(trainer.get("min_p") or 0.0),
        "repetition_penalty": float(trainer.get("repetition_penalty", 1.0)),
    }
    tasks, held_out = _tasks(asked, config)
    usual = int(trainer.get("max_completion_length") or min(_MAX_TOKENS, context // 2))
    sandbox = SandboxSection() if config is None else config.sandbox
    if asked.packages:
        sandbox = sandbox.model_copy(update={"packages": list(asked.packages)})
    return Plan(
        tasks=tasks,
        held_out=held_out,
        sandbox=sandbox,
        samples=asked.samples,
        k=_ks(asked),
        greedy=asked.greedy,
        max_tokens=asked.max_tokens or usual,
        seed=int(trainer.get("seed", _SEED)) if asked.seed is None else asked.seed,
        sampling=sampling,
        template=trainer.get("chat_template_kwargs") or {},
        engine=asked.engine,
        dtype=asked.dtype or ("float32" if engine_kind() == "cpu" else "bfloat16"),
        batch=asked.batch or _BATCH.get(engine_kind(), _BATCH_ON_DEVICE),
        limit=asked.limit,
        trust_remote_code=asked.trust_remote_code or (config is not None and config.model.trust_remote_code),
    )


def _check(asked: Asked) -> None:
    for name in ("samples", "max_tokens", "batch", "limit"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value}: expected at least 1")
    if asked.samples > _MOST_SAMPLES:
        raise InputError(f"--samples {asked.samples}: expected at most {_MOST_SAMPLES}, of each task")
    if asked.temperature is not None and not 0 < asked.temperature < float("inf"):
        raise InputError(
            f"--temperature {asked.temperature}: expected above 0",
            "The greedy completion is sampled beside (--greedy).",
        )
    if asked.against is not None and asked.against == asked.model:
        raise InputError(f"--against {asked.against}: the same as MODEL")


def _ks(asked: Asked) -> tuple[int, ...]:
    if asked.k is None:
        return tuple(k for k in _USUAL_K if k <= asked.samples)
    for k in asked.k:
        if k < 1:
            raise InputError(f"--k {k}: expected at least 1")
        if k > asked.samples:
            raise InputError(
                f"--k {k}: pass@{k} can't be told from {asked.samples} samples of a task",
                f"Give --samples {k} or more.",
            )
    return tuple(sorted(set(asked.k)))


def _tasks(asked: Asked, config: RunConfig | None) -> tuple[TasksSection, bool]:
    if asked.tasks is None:
        if config is None:
            raise InputError("which tasks?", "Give a task file, or builtin, with --tasks.")
        return config.tasks, True
    source = asked.tasks if is_builtin(asked.tasks) else str(Path(asked.tasks).expanduser().absolute())
    check_sources(source, 0.0, 0)
    section = TasksSection() if config is None else config.tasks
    return section.model_copy(update={"train": source, "held_out": 0.0, "limit": None}), False


def identity(plan: Plan) -> dict[str, Any]:
    """What decides which completions are sampled and what their verdicts are, for `evaluate.json`."""
    return {
        "samples": plan.samples,
        "greedy": plan.greedy,
        "max_tokens": plan.max_tokens,
        "seed": plan.seed,
        "sampling": dict(plan.sampling),
        "template": dict(plan.template),
        "engine": plan.engine,
        "dtype": plan.dtype,
        "batch": plan.batch,
        "sandbox": plan.sandbox.model_dump(mode="json", exclude={"slots", "require"}),
    }


def without_template(plan: Plan) -> Plan:
    """The plan for a model that another run trained, whose chat template takes other arguments."""
    return replace(plan, template={})
