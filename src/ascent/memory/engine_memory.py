"""What the sampling engine takes of a device: vLLM's own accounting, formula by formula."""

from __future__ import annotations

from dataclasses import dataclass

from ascent.memory.cards import GIB, Card
from ascent.memory.model import WIDTHS, Model
from ascent.memory.settings import Settings

# What ranks and servers hand weights over in: chunks of that size, two on their way, and the tensor that closes one
CHUNK = 512 * 2**20
SERVER_SHARE = 0.9  # of a device of its own: vLLM's default
# What stays when an engine sleeps (level 1): context, communicators, graphs. Users' logs of vLLM's sleep mode name
# 1.2 to 2.5 GiB "still in use" beside other programs
ASLEEP = int(1.5 * GIB)
# All captured decode graphs of a CUDA engine together: "Graph capturing ... took 0.5 to 0.7 GiB" in vLLM's logs. ACL
# graphs take streams and workspaces as well; vllm-ascend estimates them while it profiles
GRAPHS = {"cuda": int(0.6 * GIB), "npu": int(1.5 * GIB), "cpu": 0}


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes on one device that samples, and what its KV cache holds. `total` is what it takes in all; `short` by how
    much its share is too small for its weights and one pass, 0 where it isn't."""

    weights: int
    workspace: int
    graphs: int
    kv_cache: int
    kv_tokens: int  # over the devices of one engine, of sequences without windows
    short: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.workspace + self.graphs + self.kv_cache


def engine_memory(model: Model, card: Card, settings: Settings) -> EngineMemory:
    """The engine's memory on one device.

    vLLM takes `gpu_memory_utilization` x the device's total memory (`request_memory` in v1/worker/utils.py), and gives
    the KV cache what is left of that after weights, the peak of one pass of `max_num_batched_tokens` tokens, memory
    outside of torch, and captured graphs (`determine_available_memory` in v1/worker/gpu_worker.py). The share is of the
    whole device: what a trainer on it holds does not count. Outside of torch are the context and buffers of groups of
    ranks, which a colocated engine finds there already.
    """
    engine = settings.engine
    if engine.kind == "transformers":
        return EngineMemory(0, 0, 0, 0, 0)
    width, parallel = WIDTHS[engine.dtype], engine.tensor_parallel
    weights = model.engine_parameters(parallel) * width
    workspace = engine_workspace(model, settings)
    graphs = 0 if engine.eager else GRAPHS[card.kind]
    share = engine.share if engine.place == "colocate" else SERVER_SHARE
    if engine.kv_cache is not None:
        cache, short = engine.kv_cache, 0
    else:
        outside = 0 if engine.place == "colocate" else card.reserve + card.collective * (1 + (parallel > 1))
        left = int(share * card.usable) - weights - workspace - graphs - outside
        cache, short = max(left, 0), max(-left, 0)
    per_token = model.kv_bytes(settings.batch.length, width, tensor_parallel=parallel) / settings.batch.length
    return EngineMemory(weights, workspace, graphs, cache, int(cache / per_token), short)


def engine_workspace(model: Model, settings: Settings) -> int:
    """Bytes of one engine pass beyond weights and cache.

    Of `max_num_batched_tokens` tokens in the engine's precision: the MLP's two halves and their product (3 x its width)
    or the same of each chosen expert, and about six vectors of the model's width (stream, norm, queries, keys and
    values, attention's output); and the logits of `max_num_seqs` sequences in float32 with the sampler's copy.
    """
    engine = settings.engine
    width, parallel = WIDTHS[engine.dtype], engine.tensor_parallel
    tokens = max(engine.batched_tokens, settings.batch.length)
    inner = 3 * model.intermediate
    if model.experts is not None:
        chosen = model.experts.per_token * (3 * model.experts.intermediate + model.hidden)
        inner = max(chosen, 3 * model.experts.shared, inner if model.dense_layers else 0)
    vectors = inner / parallel + 6 * model.hidden
    sequences = engine.sequences or settings.batch.sampled
    return int(tokens * vectors * width + sequences * model.vocabulary / parallel * 8)


def transfer_buffers(model: Model, settings: Settings) -> int:
    """Bytes of the buffers in which weights reach servers: the chunk that is filled and the one on its way, each of
    which is closed by the tensor that exceeds it."""
    if settings.engine.place == "colocate":
        return 0
    return 2 * (CHUNK + model.largest_parameter * WIDTHS[settings.engine.dtype])
