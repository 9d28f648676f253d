"""RunConfig: everything that a run is. Unknown keys are refused with the nearest known name.

TRL's vLLM settings under `trainer:` are accepted and moved to `rollout` and `memory`; settings of older releases are
settled by `renamed`. What results is a plain configuration again, so the file in a run directory can be run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from ascent.config import algorithm_fields, renamed, trl_fields
from ascent.config import file as config_file
from ascent.config.sections import (
    AlarmsSection,
    AlgorithmSection,
    ClusterSection,
    MemorySection,
    ModelSection,
    RewardSection,
    RolloutSection,
    SandboxSection,
    Section,
    TasksSection,
    TrackingSection,
)
from ascent.config.setting_types import described, is_wrong, settle, settle_sections
from ascent.config.trainer_fields import trainer_fields
from ascent.errors import InputError
from ascent.tables import ALGORITHMS, listed, nearest
from ascent.tables import load as load_entry


class RunConfig(Section):
    """A whole run. `trainer` holds any field of `ascent.GRPOConfig` under its own name."""

    model: ModelSection
    algorithm: pydantic.SerializeAsAny[AlgorithmSection] = pydantic.Field("grpo", validate_default=True)
    tasks: TasksSection = TasksSection()
    reward: RewardSection = RewardSection()
    sandbox: SandboxSection = SandboxSection()
    rollout: RolloutSection = RolloutSection()
    memory: MemorySection = MemorySection()
    tracking: TrackingSection = TrackingSection()
    alarms: AlarmsSection = AlarmsSection()
    cluster: ClusterSection = ClusterSection()
    trainer: dict[str, Any] = pydantic.Field(default_factory=dict)

    @pydantic.field_validator("algorithm", mode="before")
    @classmethod
    def _of_its_own_class(cls, given: Any) -> Any:
        return given if isinstance(given, AlgorithmSection) else algorithm_section(given)

    def server_devices(self, processes: int) -> tuple[int, ...]:
        """The visible devices of the run's own servers, as indices; by default those after the training's own."""
        rollout = self.rollout
        if rollout.mode != "server" or rollout.server is not None:
            return ()
        count = rollout.replicas * rollout.tensor_parallel_size
        if rollout.server_devices is None:
            return tuple(range(processes, processes + count))
        return tuple(rollout.server_devices)

    def to_yaml(self) -> str:
        """The configuration as YAML, defaults written out; reading it gives an equal RunConfig."""
        return config_file.dump(self.model_dump(mode="json"))


def algorithm_section(given: Any) -> AlgorithmSection:
    """The section `algorithm`, from its keys or the plain name. Raises ValueError (pydantic's ValidationError is one)
    for a name or keys that don't exist."""
    keys = given if isinstance(given, dict) else {"name": given}
    name = keys.get("name", "grpo")
    if name not in ALGORITHMS:
        raise ValueError(f"should be {listed(ALGORITHMS)}")
    section: AlgorithmSection = load_entry(ALGORITHMS, name).model_validate(keys)
    return section


# TRL's own name under `trainer:` -> our key, with the translation of its value
_TRL_VLLM = {
    "use_vllm": ("rollout.engine", {True: "vllm", False: "transformers"}),
    "vllm_mode": ("rollout.mode", None),
    "vllm_gpu_memory_utilization": ("memory.engine_share", None),
    "vllm_enable_sleep_mode": ("memory.engine_sleep", None),
    "vllm_max_model_length": ("rollout.max_model_len", None),
    "vllm_server_base_url": ("rollout.server", None),
    "vllm_tensor_parallel_size": ("rollout.tensor_parallel_size", None),
}
_TRL_SERVER = ("vllm_server_host", "vllm_server_port")  # a run names its service by URL or name
_ONLY_SERVER = ("server", "replicas", "tensor_parallel_size", "server_devices", "staleness", "transport")


def load(path: Path, overrides: Sequence[str] = ()) -> tuple[RunConfig, list[str]]:
    """Read a configuration file and `key=value` overrides.

    Returns the configuration and sentences about settings that were moved or ignored. Raises InputError that lists
    every problem with its place: unknown keys, wrong values, contradictions between TRL's names and ours.
    """
    return settled(config_file.read(path, overrides))


def settled(source: config_file.Source) -> tuple[RunConfig, list[str]]:
    """The configuration that was parsed, as `load` gives it. Raises what `load` raises."""
    notes: list[str] = []
    problems: list[str] = []
    trainer = source.values.get("trainer") or {}
    if isinstance(trainer, dict):
        trainer, of_algorithm, problems = algorithm_fields.move(source, trainer)
        problems += settle(source, trainer, "trainer.", trainer_fields())
        stays, moved, notes = renamed.settle(trainer)
        notes = of_algorithm + notes
        stays, mapped = _map_trl_vllm(stays)
        source.values["trainer"] = stays
        for key, (value, old_key) in (*moved.items(), *mapped.items()):
            problems += _move(source, key, value, old_key)
        problems += _check_trainer(source)
    problems += settle_sections(source, RunConfig)
    problems += _settle_algorithm(source)
    try:
        config = RunConfig.model_validate(source.values)
    except pydantic.ValidationError as error:
        problems += [_explain(detail, source) for detail in error.errors()]
        raise _refusal(source.origin, problems) from None
    problems += _contradictions(config)
    if problems:
        raise _refusal(source.origin, problems)
    own_devices = config.rollout.mode == "server" and config.rollout.server_devices is None
    if own_devices and config_file.get(source.values, "memory.engine_share") is not None:
        notes.append("memory.engine_share is ignored with rollout.mode=server: servers have devices of their own")
    return _with_absolute_paths(config), notes


def load_for_resume(path: Path, overrides: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """The configuration of a run that goes on, with changes that leave it the same run.

    Raises InputError for a change of the model, the algorithm, the tasks or the reward.
    """
    for override in overrides:
        section = override.partition("=")[0].partition(".")[0].strip()
        if section in {"model", "algorithm", "tasks", "reward"}:
            raise InputError(
                f"argument {override!r}: a run can't change its {section} when it is resumed",
                "Start a new run from the changed configuration.",
            )
    return load(path, overrides)


def _with_absolute_paths(config: RunConfig) -> RunConfig:
    """Files named relative to where the command was given, so that the run can be resumed from anywhere."""

    def absolute(name: str) -> str:
        return os.path.abspath(name) if Path(name).exists() else name

    held_out = config.tasks.held_out
    tasks = {"train": absolute(config.tasks.train)}
    if isinstance(held_out, str):
        tasks["held_out"] = absolute(held_out)
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": absolute(config.model.path)}),
            "tasks": config.tasks.model_copy(update=tasks),
        }
    )


def _refusal(origin: str, problems: list[str]) -> InputError:
    if len(problems) == 1:
        return InputError(problems[0])
    return InputError(f"{origin}: {len(problems)} problems\n" + "\n".join(f"  {problem}" for problem in problems))


def _map_trl_vllm(trainer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Any, str]]]:
    """Take TRL's vLLM settings out of `trainer`: the rest, and new key -> (value, TRL's key)."""
    if trainer.get("plain"):  # TRL's own path reads its own settings
        return trainer, {}
    rest, mapped = {}, {}
    for key, value in trainer.items():
        if key not in _TRL_VLLM:
            rest[key] = value
            continue
        new_key, translation = _TRL_VLLM[key]
        known = translation is not None and isinstance(value, bool)
        mapped[new_key] = (translation[value] if known and translation else value, f"trainer.{key}")
    return rest, mapped


def _move(source: config_file.Source, key: str, value: Any, old_key: str) -> list[str]:
    given = config_file.get(source.values, key)
    if given is not None and given != value:
        return [f"{source.place(key)}: {key}={given!r} contradicts {old_key}={value!r}; keep one of them"]
    config_file.put(source.values, key, value)
    source.places.setdefault(key, source.place(old_key))
    if old_key in source.texts:
        source.texts.setdefault(key, source.texts[old_key])
    return []


def _check_trainer(source: config_file.Source) -> list[str]:
    fields = trainer_fields()
    known = [*fields, *algorithm_fields.owners()]
    problems = []
    for key, value in source.values["trainer"].items():
        dotted = f"trainer.{key}"
        if key not in fields:
            problems.append(f"{source.place(dotted)}: {dotted}: unknown setting{nearest(key, known)}")
            continue
        kinds = fields[key]
        if kinds is not None and is_wrong(value, kinds):
            problems.append(f"{source.place(dotted)}: {dotted}: expected {described(kinds)}, got {value!r}")
    return problems


def _settle_algorithm(source: config_file.Source) -> list[str]:
    """Replace the section `algorithm` by what it says; the problems that it has."""
    if "algorithm" not in source.values:
        return []
    given = source.values["algorithm"]
    try:
        source.values["algorithm"] = algorithm_section(given)
        return []
    except pydantic.ValidationError as error:
        details = [{**detail, "loc": ("algorithm", *detail["loc"])} for detail in error.errors()]
        problems = [_explain(detail, source) for detail in details]
    except ValueError as error:
        key = "algorithm.name" if isinstance(given, dict) else "algorithm"
        problems = [f"{source.place(key)}: {key}: {error}, got {given['name'] if isinstance(given, dict) else given!r}"]
    del source.values["algorithm"]
    return problems


def _explain(detail: Any, source: config_file.Source) -> str:
    """One pydantic error in our words, with its place."""
    parts = [str(part) for part in detail["loc"]]
    key = ".".join(parts)
    place = source.place(key)
    if detail["type"] == "extra_forbidden":
        return f"{place}: {key}: unknown key{nearest(parts[-1], _known_keys(parts[:-1]))}"
    if detail["type"] == "missing":
        return f"{place}: {key} is required"
    message, hint = str(detail["msg"]).replace("Input should be", "should be").removeprefix("Value error, "), ""
    if detail["type"] == "unknown_name":
        message, hint = "should be {listed}".format(**detail["ctx"]), detail["ctx"]["hint"]
    return f"{place}: {key}: {message}, got {detail['input']!r}{hint}"


def _known_keys(path: Sequence[str]) -> list[str]:
    section: Any = RunConfig
    if path[:1] == ["algorithm"]:
        return sorted({key for name in ALGORITHMS for key in load_entry(ALGORITHMS, name).model_fields})
    for part in path:
        field = section.model_fields.get(part)
        section = field.annotation if field else None
        if not (isinstance(section, type) and issubclass(section, pydantic.BaseModel)):
            return []
    return list(section.model_fields)


def _contradictions(config: RunConfig) -> list[str]:
    problems = []
    weighted = len(config.reward.functions) > 1 or config.reward.functions[0].weight != 1.0
    if weighted and config.trainer.get("reward_weights") is not None:
        problems.append("trainer.reward_weights contradicts the weights of reward.functions; keep one of them")
    if config.trainer.get("plain") and config.algorithm.name != "grpo":
        problems.append(f"algorithm={config.algorithm.name} contradicts trainer.plain=true, which is TRL's own GRPO")
    reward = config.reward
    pays_for_code = any(each.function == "code" for each in reward.functions)
    if pays_for_code and reward.compile_weight + reward.tests_weight + reward.all_tests_weight <= 0:
        problems.append(
            "reward.compile_weight, reward.tests_weight and reward.all_tests_weight are all 0: every completion would "
            "score 0"
        )
    dtype = (config.trainer.get("model_init_kwargs") or {}).get("dtype")
    if dtype is not None and config.model.dtype not in ("auto", dtype):
        problems.append(f"model.dtype={config.model.dtype!r} contradicts trainer.model_init_kwargs.dtype={dtype!r}")
    if config.model.head_dtype == "float32" and config.trainer.get("cast_lm_head_to_fp32") is False:
        problems.append("model.head_dtype=float32 contradicts trainer.cast_lm_head_to_fp32=false")
    head = config.model.head_dtype == "float32" or config.trainer.get("cast_lm_head_to_fp32")
    if head and config.rollout.server is not None:
        problems.append(
            "model.head_dtype=float32: the service that rollout.server names has another head; on one side alone it "
            "can widen the difference of sampler and trainer. Let the run start its own servers"
        )
    if not config.trainer.get("plain"):
        problems += [
            f"trainer.{key}={config.trainer[key]!r}: name the service in rollout.server"
            for key in _TRL_SERVER
            if key in config.trainer
        ]
        problems += [
            f"trainer.{refused}; or take TRL's own path with trainer.plain=true"
            for refused in trl_fields.refusals(
                lambda name: config.trainer.get(name, trl_fields.FIELDS[name].usual), _engine_of(config.rollout)
            )
        ]
    problems += _evaluation_contradictions(config)
    if "output_dir" in config.trainer:
        problems.append("trainer.output_dir is set by the run directory; use tracking.folder and tracking.name")
    return problems + _rollout_contradictions(config)


def _evaluation_contradictions(config: RunConfig) -> list[str]:
    every = config.tracking.eval_every
    if every is None:
        return []
    if not config.tracking.evaluate:
        return [f"tracking.eval_every={every} contradicts tracking.evaluate=false; keep one of them"]
    if config.trainer.get("plain"):
        return [f"tracking.eval_every={every} contradicts trainer.plain=true: TRL's path has trainer.eval_strategy"]
    return []


def _engine_of(rollout: RolloutSection) -> trl_fields.Engine:
    if rollout.mode == "server":
        return "server"
    return "colocate" if rollout.engine == "vllm" else "transformers"


def _rollout_contradictions(config: RunConfig) -> list[str]:
    rollout, usual = config.rollout, RolloutSection()
    if config.trainer.get("plain"):
        return []
    if config.memory.engine_sleep and rollout.engine != "vllm":
        return [f"memory.engine_sleep=True, which only vLLM has, contradicts rollout.engine={rollout.engine}"]
    if rollout.mode == "colocate":
        return _speculative_contradictions(config) + [
            f"rollout.{key}={getattr(rollout, key)!r} means something only with rollout.mode=server"
            for key in _ONLY_SERVER
            if getattr(rollout, key) != getattr(usual, key)
        ]
    problems = [
        f"memory.{key}={getattr(config.memory, key)!r} makes room on a device that trainer and engine share; it "
        "contradicts rollout.mode=server"
        for key in ("engine_sleep", "offload")
        if getattr(config.memory, key) != getattr(MemorySection(), key)
    ]
    count = rollout.replicas * rollout.tensor_parallel_size
    if rollout.server_devices is not None and len(set(rollout.server_devices)) != count:
        problems.append(
            f"rollout.server_devices={rollout.server_devices}: {rollout.replicas} replicas of "
            f"{rollout.tensor_parallel_size} devices need {count} different ones"
        )
    if rollout.engine != "vllm":
        problems.append(f"rollout.mode=server samples with vLLM; it contradicts rollout.engine={rollout.engine}")
    if rollout.server is not None:
        problems += [
            f"rollout.{key}={getattr(rollout, key)!r} is for a service that the run starts itself, but "
            f"rollout.server={rollout.server!r} names one that stands already: set it where that one starts"
            for key in ("replicas", "tensor_parallel_size", "server_devices", "speculative")
            if getattr(rollout, key) != getattr(usual, key)
        ]
    return problems + _speculative_contradictions(config)


def _speculative_contradictions(config: RunConfig) -> list[str]:
    method, engine = config.rollout.speculative, config.rollout.engine
    if method is None:
        return []
    problems = []
    if engine != "vllm":
        problems.append(f"rollout.speculative={method}, which only vLLM has, contradicts rollout.engine={engine}")
    if config.trainer.get("min_p"):
        problems.append(f"rollout.speculative={method} contradicts trainer.min_p, which vLLM can't do with it")
    if config.trainer.get("seeded_sampling"):
        problems.append(f"rollout.speculative={method} contradicts trainer.seeded_sampling: draws depend on guesses")
    return problems
