"""What the Ascend examples need of a card, computed from the models' public shapes.

An upper estimate that wasn't compared with a card yet. examples/ascend/README.md gives the formula and the results.
"""

from __future__ import annotations

from dataclasses import dataclass

from ascent.config import RunConfig

GIB = 2**30
BF16, FP32 = 2, 4
# What torch_npu reports of a "64 GB" (65536 MB) card in users' logs: "60.96 GiB total capacity" and the like.
CARD_GIB = 61.0
# Share of the card that a run's own servers take, which is vLLM's default too.
SERVER_SHARE = 0.9
# CANN's context, HCCL's buffers, fragmentation. A guess, on the safe side.
RESERVE_GIB = 4.0
# What is broadcast to servers at once: a chunk is closed by the tensor that exceeds it, and two are on their way.
TRANSPORT_CHUNK_BYTES = 512 * 2**20
# TRL scores tiles of 4096 tokens x 32768 words and keeps a handful of them in float32 (its kernels/chunked_logprob.py)
LM_HEAD_TILES = 6
LM_HEAD_TILE_BYTES = 4096 * 32768 * FP32


@dataclass(frozen=True)
class Shape:
    """The dimensions of a dense model, from its config.json; embeddings aren't tied."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int

    @property
    def layer_parameters(self) -> int:
        """Matrices, biases of q, k and v, two norms."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        attention = 2 * self.hidden * queries + 2 * self.hidden * keys + queries + 2 * keys
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """The input embedding and the output head."""
        return 2 * self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters + self.hidden

    def lora_parameters(self, rank: int) -> int:
        """Of adapters on every linear layer but the output head, as `all-linear` means it."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        attention = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        return self.layers * rank * (attention + 3 * (self.hidden + self.intermediate))

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head_width * BF16


# From https://huggingface.co/Qwen/Qwen2.5-7B-Instruct/blob/main/config.json, and the same of Qwen2.5-32B-Instruct. The
# model cards state 7.61 and 32.5 billion parameters, 6.53 and 31.0 billion without embeddings.
SHAPES = {
    "Qwen/Qwen2.5-7B-Instruct": Shape(28, 3584, 18944, 28, 4, 128, 152064),
    "Qwen/Qwen2.5-32B-Instruct": Shape(64, 5120, 27648, 40, 8, 128, 152064),
}


@dataclass(frozen=True)
class Need:
    """GiB on one training card (`trainer`, part by part) and on one engine card. `shared`: they are the same card."""

    trainer: dict[str, float]
    engine: float
    engine_weights: float
    kv_tokens: int  # that the engine's cache holds, over its cards
    shared: bool

    @property
    def training_card(self) -> float:
        return sum(self.trainer.values()) + (self.engine if self.shared else 0.0)


def need(config: RunConfig, shape: Shape, *, devices: int) -> Need:
    """What a run with `devices` training processes takes on each card."""
    shared, tensor_parallel = config.rollout.mode == "colocate", config.rollout.tensor_parallel_size
    trainer = _trainer(config, shape, parts=devices if config.trainer.get("fsdp") else 1)
    share = config.memory.engine_share if shared else SERVER_SHARE
    engine = share * CARD_GIB
    weights = shape.parameters * BF16 / tensor_parallel / GIB
    profile = _layer_activations(shape, config.rollout.max_num_batched_tokens) / GIB
    cache = engine - weights - profile - (0.0 if shared else RESERVE_GIB + _transport(shape))
    kv_tokens = int(max(cache, 0.0) * GIB * tensor_parallel // shape.kv_bytes_per_token)
    return Need(trainer, engine, weights, kv_tokens, shared)


def _trainer(config: RunConfig, shape: Shape, *, parts: int) -> dict[str, float]:
    """`parts`: in how many pieces FSDP cuts weights, gradients and optimizer state."""
    lora = config.model.lora
    trained = shape.lora_parameters(lora.r) if lora else shape.parameters
    frozen = shape.parameters if lora else 0
    width = BF16 if config.model.dtype == "bfloat16" else FP32
    length = config.rollout.max_model_len
    assert length is not None
    tokens = config.trainer["per_device_train_batch_size"] * length
    outer = shape.embedding_parameters  # FSDP's outermost unit stays gathered
    gathered = (2 * shape.layer_parameters + outer) * BF16 if parts > 1 else 0
    if not lora:  # gradients before they are summed over the cards and cut; the head's are added up in float32
        gathered += (shape.layer_parameters + outer) * BF16 + outer // 2 * FP32
    synced = outer // 2 * width if parts > 1 else 0  # the largest tensor, whole, on its way to the engine
    sizes = {
        "weights": (frozen * width + trained * FP32) / parts,
        "gradients": trained * FP32 / parts,
        "optimizer": 2 * trained * FP32 / parts,
        "gathered": gathered + synced,
        "activations": shape.layers * tokens * shape.hidden * BF16 + _layer_activations(shape, tokens),
        "logits": LM_HEAD_TILES * LM_HEAD_TILE_BYTES,
    }
    transport = 0.0 if config.rollout.mode == "colocate" else _transport(shape)
    return {name: size / GIB for name, size in sizes.items()} | {"transport": transport, "reserve": RESERVE_GIB}


def _transport(shape: Shape) -> float:
    """GiB of the buffers that weights are sent from and received in."""
    return 2 * (TRANSPORT_CHUNK_BYTES + shape.vocabulary * shape.hidden * BF16) / GIB


def _layer_activations(shape: Shape, tokens: int) -> float:
    """Bytes of one layer, computed again in the backward pass: four vectors of the MLP's width and ten of the model's,
    and half as much again for what operators need beside them. Attention is fused: no matrix of tokens x tokens."""
    return 1.5 * tokens * (4 * shape.intermediate + 10 * shape.hidden) * BF16
