"""The sections of a configuration, each with its settings and their defaults (docs/configuration.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
import pydantic_core

from ascent.sandbox.types import Level, Limits
from ascent.tables import ENGINES, REWARDS, TRANSPORTS, listed, nearest

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def _name_in(table: Mapping[str, str], *more: str) -> pydantic.AfterValidator:
    """A value that must be a name of the table (`ascent.tables`), or one of `more`."""

    def check(name: str) -> str:
        known = [*more, *table]
        if name not in known:
            raise pydantic_core.PydanticCustomError(
                "unknown_name", "should be {listed}{hint}", {"listed": listed(known), "hint": nearest(name, known)}
            )
        return name

    return pydantic.AfterValidator(check)


class Section(pydantic.BaseModel):
    """One section of the configuration file. Immutable; unknown keys are errors."""

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        ser_json_inf_nan="constants",  # those of `trainer`
    )


class LoraSection(Section):
    """Train low-rank adapters instead of all weights (names as in `peft.LoraConfig`)."""

    r: int = pydantic.Field(16, ge=1)
    lora_alpha: int = pydantic.Field(32, ge=1)
    lora_dropout: float = pydantic.Field(0.0, ge=0, lt=1)
    target_modules: list[str] | str = "all-linear"


class ModelSection(Section):
    """The policy: a hub id or a folder with config, weights and tokenizer."""

    path: str
    revision: str | None = None
    dtype: Dtype = "auto"  # of the trained weights; auto: float32
    head_dtype: Literal["model", "float32"] = "model"  # what the output head is computed in, by trainer and engine
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    lora: LoraSection | None = None


class AlgorithmSection(Section):
    """Which algorithm makes the updates, and its settings: a class of `ascent.tables.ALGORITHMS` says which keys there
    are. `algorithm: grpo` is short for `algorithm: {name: grpo}`."""

    name: str

    @property
    def couples_rows(self) -> bool:
        """See Algorithm. An algorithm that can be computed on any part of a micro-batch says so."""
        return True


class TasksSection(Section):
    """What is asked: a file or a built-in set, and which part of it is held out."""

    train: str = "builtin"
    held_out: float | int | str = 0.2  # a share, a number of tasks, or another file
    limit: int | None = pydantic.Field(None, ge=1)  # at most so many training tasks
    seed: int = 0  # of the split
    chat: Literal["auto", "always", "never"] = "auto"  # auto: chat messages when the tokenizer has a template
    max_prompt_tokens: int | None = pydantic.Field(None, ge=1)  # tasks with longer prompts are left out and reported
    strict: bool = False  # compare floats exactly in those public formats whose own checker does


class RewardFunctionSection(Section):
    """One reward function, and what its rewards count for: `code`, or `module:attribute` for one of another module."""

    function: str
    weight: float = 1.0

    @pydantic.model_validator(mode="before")
    @classmethod
    def _plain_name(cls, given: Any) -> Any:
        return {"function": given} if isinstance(given, str) else given

    @pydantic.field_validator("function")
    @classmethod
    def _known(cls, function: str) -> str:
        if ":" not in function and function not in REWARDS:
            raise ValueError(f"should be {listed(REWARDS)}, or module:attribute{nearest(function, REWARDS)}")
        return function


class RewardSection(Section):
    """The rewards of `functions`, each times its weight, are added up. For `code` a completion scores `compile_weight`
    if its program compiles, plus `tests_weight` x tests passed / tests, plus `all_tests_weight` if it passes them all.
    """

    functions: list[RewardFunctionSection] = pydantic.Field([RewardFunctionSection(function="code")], min_length=1)
    compile_weight: float = pydantic.Field(0.1, ge=0)
    tests_weight: float = pydantic.Field(0.9, ge=0)
    all_tests_weight: float = pydantic.Field(0.0, ge=0)
    tests: Literal["visible", "hidden", "both"] = "both"
    audit: bool = True  # with tests=visible: programs that pass them are also judged by the hidden ones, unpaid


class SandboxSection(Section):
    """How model-written programs are run."""

    slots: int | None = pydantic.Field(None, ge=1)  # programs at once; default: half of this process's cores
    require: Level = "confined"  # refuse to train on a machine that can't confine programs this well
    wall_seconds: float = pydantic.Field(10.0, gt=0)
    cpu_seconds: float = pydantic.Field(5.0, gt=0)
    memory_mb: int = pydantic.Field(512, ge=16)
    packages: list[str] = []  # that programs may import beside the standard library, such as numpy
    allow_in_process: bool = False  # tests that run in the program's own process, where it can forge a pass

    def limits(self) -> Limits:
        """The limits of one program."""
        return Limits(wall_seconds=self.wall_seconds, cpu_seconds=self.cpu_seconds, memory_bytes=self.memory_mb * 2**20)


class RolloutSection(Section):
    """The sampling engine."""

    mode: Literal["colocate", "server"] = "colocate"
    engine: Annotated[str, _name_in(ENGINES)] = "vllm"
    server: str | None = None  # with mode=server: a service's name or address; default: one of the run's own
    replicas: int = pydantic.Field(1, ge=1)  # servers of the run's own service
    tensor_parallel_size: int = pydantic.Field(1, ge=1)  # devices of one server
    adapter: bool | None = None  # a LoRA adapter goes to the servers by itself; default: where they serve adapters
    server_devices: list[int] | None = None  # for the run's own service: indices of visible devices
    staleness: Literal[0, 1] = 0  # 1: the next generation is sampled while this one trains
    transport: Annotated[str, _name_in(TRANSPORTS, "auto")] = "auto"  # how weights reach the servers
    verify: bool = True  # that the engine holds the trainer's weights and computes with them as the trainer does
    max_restarts: int = pydantic.Field(5, ge=0)  # of servers, within restart_window_minutes
    restart_window_minutes: float = pydantic.Field(30, gt=0)
    dtype: Dtype = "auto"  # auto: as the model on CPU, bfloat16 elsewhere
    max_model_len: int | None = pydantic.Field(None, ge=1)  # prompt and completion; default: what the tasks need
    max_num_seqs: int | None = pydantic.Field(None, ge=1)  # default: the generation batch
    max_num_batched_tokens: int = pydantic.Field(4096, ge=1)
    prefix_caching: bool = True
    chunked_prefill: bool | None = None  # default: vLLM's own for the model
    block_size: int | None = pydantic.Field(None, ge=1)  # tokens of a block of the KV cache; default: the platform's
    threads: int | None = pydantic.Field(None, ge=1)  # of an engine on CPU; default: as the process has
    enforce_eager: bool | None = None  # default: eager on CPU and NPU, graphs on CUDA
    speculative: Literal["ngram", "suffix"] | None = None  # tokens guessed from text that was seen
    speculative_tokens: int = pydantic.Field(4, ge=1)  # guessed at once


class MemorySection(Section):
    """How a device's memory is shared."""

    engine_share: float = pydantic.Field(0.3, gt=0, lt=1)  # of the device, where the training computes too (not on CPU)
    kv_cache_mb: int | None = pydantic.Field(None, ge=1)  # exact size of the KV cache; default on CPU: 512
    engine_sleep: bool = False  # a colocated engine gives its memory back while the trainer computes
    offload: Literal["none", "optimizer", "all"] = "none"  # what the trainer gives to the host while it samples
    check: Literal["refuse", "warn", "off"] = "refuse"  # a run that by its plan doesn't fit
    trainer_gb: float | None = pydantic.Field(
        None, gt=0
    )  # GiB that the trainer's allocator may take; no cap by default


class AlarmsSection(Section):
    """What follows from an alarm (docs/alarms.md)."""

    stop_on: list[Literal["info", "warn", "critical"]] = []  # alarms of these levels end the run, with a checkpoint


class TrackingSection(Section):
    """What is recorded, and where."""

    folder: str = "runs"
    name: str | None = None  # default: the configuration's name and the time
    evaluate: bool = True  # on the held-out tasks, before and after training
    eval_tasks: int | None = pydantic.Field(64, ge=1)  # at most so many held-out tasks
    eval_samples: int = pydantic.Field(4, ge=1)  # sampled completions of each, beside the greedy one
    report: bool = True  # write report.html when training ends
    eval_every: int | None = pydantic.Field(None, ge=1)  # also in between, after so many steps each


class ClusterSection(Section):
    """Several machines, joined by Ray (docs/scale.md). With an address a run is placed over its nodes."""

    address: str | None = None  # none: this machine alone; `auto`; HOST:PORT of the head
    nodes: int | None = pydantic.Field(None, ge=1)  # that train; default: as few as hold the processes
    min_nodes: int | None = pydantic.Field(None, ge=1)  # a run that lost a node goes on with so few; default: `nodes`
    judge_cpus: int | None = pydantic.Field(None, ge=1)  # cores of each node that judge; default: half of what is left
    interface: str | None = None  # the network interface between nodes; default: the one that holds the node's address
    ports: str = pydantic.Field("29400-29499", pattern=r"^\d{1,5}-\d{1,5}$")  # FIRST-LAST, that the run may listen at
    wait_minutes: float = pydantic.Field(10, gt=0)  # for nodes that are missing, before the run is refused
    max_restarts: int = pydantic.Field(3, ge=0)  # of the training, each after a loss
