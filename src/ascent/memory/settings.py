"""What a plan is made for: the settings of a training that decide its memory. Independent of any trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ascent.errors import InputError
from ascent.memory.model import WIDTHS, Model

Offload = Literal["none", "optimizer", "all"]
# optimizer (transformers' names) -> bytes of state for each byte of trained parameters; one that is not here is taken
# for AdamW
OPTIMIZER_STATES = {
    "adamw_torch": 2.0,
    "adamw_torch_fused": 2.0,
    "adamw_8bit": 0.5,
    "adamw_bnb_8bit": 0.5,
    "paged_adamw_8bit": 0.5,
    "lion_32bit": 1.0,
    "sgd": 0.0,
    "adafactor": 0.01,
}


@dataclass(frozen=True, slots=True)
class Penalty:
    """GPRO's second gradient, which is taken at moved weights. `moves`: which of the trained ones these are.
    `fraction`: the share of the rows that it is taken of; where it isn't all, their first gradient is kept apart.
    `searches`: the radius is looked for."""

    moves: Literal["all", "without_embeddings", "norms"] = "all"
    fraction: float = 1.0
    searches: bool = True


@dataclass(frozen=True, slots=True)
class Trained:
    """How the policy is trained. `dtype` is that of its weights (of frozen ones with LoRA, whose adapters are float32);
    `autocast`: products are computed in bfloat16. `reference`: a frozen copy beside it. `logits`: "tiled" where the
    head's products are never held whole (TRL's fused head), "full" where they are. `router_loss`: that of a mixture of
    experts is taken, where the model has one. `scores`: old log-probabilities are taken in a pass of their own (those
    of a reference always are). `penalty`: None for GRPO. `cap`: bytes that the trainer's allocator may take."""

    dtype: str = "float32"
    autocast: bool = True
    lora: int | None = None  # rank
    optimizer: str = "adamw_torch_fused"
    reference: bool = False
    checkpointing: bool = True
    fused_attention: bool = True
    logits: Literal["tiled", "full"] = "tiled"
    router_loss: bool = True
    scores: bool = True
    penalty: Penalty | None = None
    offload: Offload = "none"
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one optimizer step is trained on, on one device. `prompt` and `completion` are the longest, in tokens.

    `micro_batch` sequences x `accumulation` make an optimizer step; `group` completions share a prompt. `budget` is the
    most tokens of a pass: None for micro-batches as they are, 0 for as many as the longest rows of one have.
    `shared_prompt`: a prompt is computed once for its group. `generation`: completions sampled at once (default: those
    of an optimizer step).
    """

    prompt: int = 512
    completion: int = 1024
    micro_batch: int = 8
    accumulation: int = 1
    group: int = 8
    budget: int | None = 0
    shared_prompt: bool = True
    generation: int | None = None

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt + self.completion

    @property
    def sampled(self) -> int:
        """Completions sampled at once on this device."""
        return self.generation or self.micro_batch * self.accumulation


@dataclass(frozen=True, slots=True)
class Engine:
    """What samples. `share` is of the device's memory (vLLM's `gpu_memory_utilization`), `kv_cache` an exact size in
    bytes that takes its place. `sleeps`: it gives its memory back while the trainer computes."""

    kind: Literal["vllm", "transformers"] = "vllm"
    place: Literal["colocate", "server", "elsewhere"] = "colocate"
    share: float = 0.3
    kv_cache: int | None = None
    dtype: str = "bfloat16"
    sequences: int | None = None  # sampled at once; default: the generation
    batched_tokens: int = 4096
    tensor_parallel: int = 1
    replicas: int = 1
    eager: bool = True
    sleeps: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Which devices hold what: `trainers` processes, one a device, of which `shards` hold one copy of the policy
    between them (FSDP); `servers` further devices that sample."""

    trainers: int = 1
    shards: int = 1
    servers: int = 0

    @property
    def cards(self) -> int:
        """All of them."""
        return self.trainers + self.servers


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a plan is made of, beside the model and the card."""

    trained: Trained = Trained()
    batch: Batch = Batch()
    engine: Engine = Engine()
    layout: Layout = Layout()


def balances(model: Model, trained: Trained) -> bool:
    """Whether the loss has a part that keeps a mixture's experts in balance. It is made of all tokens of TRL's padded
    micro-batches, so these stay as they are."""
    return model.experts is not None and model.experts.router_loss and trained.router_loss


def check(settings: Settings, model: Model) -> None:
    """Raise InputError for settings that contradict each other or the model."""
    trained, batch, engine, layout = settings.trained, settings.batch, settings.engine, settings.layout
    for what, dtype in (("model.dtype", trained.dtype), ("rollout.dtype", engine.dtype)):
        if dtype not in WIDTHS:
            raise InputError(f"{what}={dtype}: expected {', '.join(WIDTHS)}")
    for what, value in (
        ("prompt tokens", batch.prompt),
        ("completion tokens", batch.completion),
        ("sequences of a pass", batch.micro_batch),
        ("passes of a step", batch.accumulation),
        ("completions of a prompt", batch.group),
        ("devices that train", layout.trainers),
        ("devices that share the policy", layout.shards),
        ("devices of an engine", engine.tensor_parallel),
    ):
        if value < 1:
            raise InputError(f"{what}: {value}, expected at least 1")
    if batch.length > 2**24:
        raise InputError(f"sequences of {batch.length} tokens: expected at most {2**24}")
    if not 0 < engine.share < 1:
        raise InputError(f"memory.engine_share={engine.share}: expected a share between 0 and 1")
    if trained.lora is not None and not 1 <= trained.lora <= model.hidden:
        raise InputError(f"model.lora.r={trained.lora}: expected 1 to the model's width {model.hidden}")
    _check_penalty(trained, model)
    _check_layout(settings, model)


def _check_penalty(trained: Trained, model: Model) -> None:
    """As `ascent.algorithms.gradient_penalty` refuses them when a training begins."""
    if trained.penalty is None:
        return
    if trained.lora is None and trained.dtype != "float32":
        raise InputError(
            f"weights in {trained.dtype} with GPRO: most of a small step of the weights is lost in their rounding",
            "Set model.dtype=float32 (trainer.bf16 may stay on), or train adapters (model.lora).",
        )
    if trained.lora is not None and trained.penalty.moves == "norms":
        raise InputError(
            "gradient_penalty_parameters=norms with adapters: this training changes no such weights",
            "Take gradient_penalty_parameters=all, which are the adapters.",
        )
    if trained.penalty.fraction < 1.0 and balances(model, trained):
        raise InputError(
            f"gradient_penalty_fraction={trained.penalty.fraction:g} takes some of the rows, but with the loss that "
            "balances this model's experts micro-batches stay whole",
            "Set gradient_penalty_fraction=1 or trainer.router_aux_loss_coef=0.",
        )


def _check_layout(settings: Settings, model: Model) -> None:
    engine, layout = settings.engine, settings.layout
    if layout.trainers % layout.shards:
        raise InputError(
            f"the policy in {layout.shards} pieces over {layout.trainers} training devices: they aren't whole copies",
            f"Take a number of pieces that divides {layout.trainers}.",
        )
    parallel = engine.tensor_parallel
    if model.heads % parallel:
        raise InputError(
            f"tensor parallelism over {parallel} devices: the model's {model.heads} attention heads can't be dealt out",
            f"Take one of {', '.join(map(str, _divisors(model.heads)))}.",
        )
    if model.latent is None and max(parallel, model.kv_heads) % min(parallel, model.kv_heads):
        raise InputError(
            f"tensor parallelism over {parallel} devices: {model.kv_heads} key-value heads can't be dealt out to them"
        )
    if engine.place == "colocate" and parallel > 1:
        raise InputError(
            f"tensor parallelism over {parallel} devices with an engine in the training process, which has one device",
            "Let servers sample: rollout.mode=server (ascent plan: --servers N).",
        )
    if engine.place == "server" and layout.servers != parallel * engine.replicas:
        raise InputError(
            f"{layout.servers} devices for {engine.replicas} servers of {parallel} devices",
            f"They take {parallel * engine.replicas}.",
        )
    if engine.place == "colocate" and layout.servers:
        raise InputError(f"{layout.servers} devices for servers, but the engine is in the training process")
    if engine.place != "colocate" and settings.trained.offload != "none":
        raise InputError(
            f"memory.offload={settings.trained.offload} makes room for an engine on the trainer's device, but it "
            "samples elsewhere",
            "Leave memory.offload out.",
        )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, min(number, 64) + 1) if number % each == 0]
