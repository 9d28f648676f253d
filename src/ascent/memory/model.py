"""A language model's dimensions, and what follows from them alone: parameters, and bytes of keys and values.

Everything here is exact. `config_json.py` reads the dimensions from a model's `config.json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number
VOCABULARY_PADDING = 64  # vLLM rounds embeddings up to a multiple of it on each device (vocab_parallel_embedding.py)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one compressed vector a token is cached.

    `q_rank` is None where queries aren't compressed. `nope` and `rope` are the parts of a query's and key's head
    without and with positions, `value` is the width of a value's head.
    """

    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of the MLP, in all layers but the first `dense_layers`.

    `shared` is the width of what all tokens pass through, 0 for none; `shared_gate`: it has a gate of one number.
    `adapted`: LoRA's `all-linear` means attention, router and experts, and no other MLP. `router_loss`: a loss keeps
    their use in balance, unless it is switched off.
    """

    count: int
    per_token: int
    intermediate: int
    shared: int = 0
    shared_gate: bool = False
    dense_layers: int = 0
    adapted: bool = False
    router_loss: bool = False


@dataclass(frozen=True, slots=True)
class Linear:
    """`count` matrices of `inputs` x `outputs`. Those that aren't `adaptable` LoRA's `all-linear` leaves out, as it
    does stacked experts."""

    inputs: int
    outputs: int
    bias: bool = False
    count: int = 1
    adaptable: bool = True

    @property
    def parameters(self) -> int:
        return self.count * (self.inputs + self.bias) * self.outputs


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder. `norms` are those of the model's width in a layer, `head_norms` the elements of norms of queries and
    keys. `window`: so many layers (`windowed_layers`) see only that many tokens back. `context`: the longest sequence.
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    gated: bool = True  # the MLP has three matrices, not two
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    head_norms: int = 0
    latent: Latent | None = None
    experts: Experts | None = None
    window: int | None = None
    windowed_layers: int = 0
    context: int = 0

    # ---- widths -------------------------------------------------------------------------------------------------

    @property
    def query_width(self) -> int:
        """Numbers of all query heads of a token."""
        return self.heads * (self.latent.nope + self.latent.rope if self.latent else self.head_dim)

    @property
    def key_width(self) -> int:
        """Numbers of all key heads of a token, as attention sees them."""
        return self.query_width if self.latent else self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Numbers of all value heads of a token, as attention sees them."""
        return self.heads * self.latent.value if self.latent else self.kv_heads * self.head_dim

    @property
    def output_width(self) -> int:
        """Numbers that attention gives for a token, before its output matrix."""
        return self.heads * (self.latent.value if self.latent else self.head_dim)

    # ---- parameters ---------------------------------------------------------------------------------------------

    def attention_linears(self) -> Iterator[Linear]:
        """The matrices of one layer's attention."""
        latent = self.latent
        if latent is None:
            yield Linear(self.hidden, self.query_width, self.qkv_bias)
            yield Linear(self.hidden, self.key_width, self.qkv_bias)
            yield Linear(self.hidden, self.value_width, self.qkv_bias)
        else:
            if latent.q_rank is None:
                yield Linear(self.hidden, self.query_width)
            else:
                yield Linear(self.hidden, latent.q_rank, self.qkv_bias)
                yield Linear(latent.q_rank, self.query_width)
            yield Linear(self.hidden, latent.kv_rank + latent.rope, self.qkv_bias)
            yield Linear(latent.kv_rank, self.heads * (latent.nope + latent.value))
        yield Linear(self.output_width, self.hidden, self.out_bias)

    def mlp_linears(self, *, dense: bool) -> Iterator[Linear]:
        """The matrices of one layer's MLP, or of its experts where it is not `dense`."""
        if dense or self.experts is None:
            yield from self._mlp(self.intermediate, adaptable=True, count=1)
            return
        experts = self.experts
        yield Linear(self.hidden, experts.count, adaptable=False)
        yield from self._mlp(experts.intermediate, adaptable=False, count=experts.count)
        if experts.shared:
            yield from self._mlp(experts.shared, adaptable=True, count=1)
        if experts.shared_gate:
            yield Linear(self.hidden, 1)

    def _mlp(self, width: int, *, adaptable: bool, count: int) -> Iterator[Linear]:
        for _ in range(2 if self.gated else 1):
            yield Linear(self.hidden, width, self.mlp_bias, count, adaptable)
        yield Linear(width, self.hidden, self.mlp_bias, count, adaptable)

    def linears(self, *, dense: bool) -> tuple[Linear, ...]:
        """All matrices of one layer."""
        return (*self.attention_linears(), *self.mlp_linears(dense=dense))

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers if self.experts is None else min(self.experts.dense_layers, self.layers)

    def layer_parameters(self, *, dense: bool) -> int:
        """Of one layer: matrices, biases and norms."""
        own = sum(linear.parameters for linear in self.linears(dense=dense))
        return own + self.norms * self.hidden + self.head_norms + self._rank_norms

    @property
    def embedding_parameters(self) -> int:
        """The input embedding and the output head, which is the same matrix where they are tied."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def norm_parameters(self) -> int:
        """Those of norms: in each layer and after the last one."""
        return self.layers * (self.norms * self.hidden + self.head_norms + self._rank_norms) + self.hidden

    @property
    def _rank_norms(self) -> int:
        latent = self.latent
        return 0 if latent is None else latent.kv_rank + (latent.q_rank or 0)

    @property
    def parameters(self) -> int:
        """All of them."""
        sparse = self.layers - self.dense_layers
        layers = self.dense_layers * self.layer_parameters(dense=True)
        if sparse:
            layers += sparse * self.layer_parameters(dense=False)
        return layers + self.embedding_parameters + self.hidden

    def linear_parameters(self, *, experts: bool) -> int:
        """Those of the layers' matrices, which a product in another precision needs a copy of; stacked experts too?"""
        sparse = self.layers - self.dense_layers
        of = {
            dense: sum(each.inputs * each.outputs * each.count for each in self.linears(dense=dense)
                       if experts or each.count == 1)
            for dense in (True, False)
        }  # fmt: skip
        return self.dense_layers * of[True] + sparse * of[False]

    @property
    def active_parameters(self) -> int:
        """Those that a token meets."""
        if self.experts is None:
            return self.parameters
        idle = self.experts.count - self.experts.per_token
        each = (3 if self.gated else 2) * self.hidden * self.experts.intermediate
        return self.parameters - (self.layers - self.dense_layers) * idle * each

    def lora_parameters(self, rank: int) -> int:
        """Of adapters of that rank on every matrix that PEFT's `all-linear` means: not the output head, and experts
        only where PEFT knows them (gate and up as one matrix, with twice the rank)."""
        experts = self.experts
        if experts is not None and experts.adapted:
            attention = sum(rank * (each.inputs + each.outputs) for each in self.attention_linears())
            up = 2 * rank * (self.hidden + 2 * experts.intermediate) + rank * (experts.intermediate + self.hidden)
            router = rank * (self.hidden + experts.count)
            return self.layers * attention + (self.layers - self.dense_layers) * (experts.count * up + router)
        sparse = self.layers - self.dense_layers
        of = {dense: sum(rank * (each.inputs + each.outputs) for each in self.linears(dense=dense) if each.adaptable)
              for dense in (True, False)}  # fmt: skip
        return self.dense_layers * of[True] + sparse * of[False]

    @property
    def largest_parameter(self) -> int:
        """Elements of the largest single tensor."""
        stacked = [each.parameters for each in self.linears(dense=self.experts is None)]
        return max(self.vocabulary * self.hidden, *stacked)

    # ---- keys and values ------------------------------------------------------------------------------------------

    def kv_bytes_per_token(self, width: int = 2, *, tensor_parallel: int = 1) -> int:
        """Bytes on one device that the cache grows by for a token that every layer sees.

        2 x key-value heads x head width of each layer; with tensor parallelism heads are dealt out, and each device
        holds one at least. Latent attention caches one vector of `kv_rank + rope` numbers, whole on every device
        (vLLM's `MLAAttentionSpec`; DeepSeek-V2, section 2.1).
        """
        if self.latent is not None:
            return self.layers * (self.latent.kv_rank + self.latent.rope) * width
        heads = max(1, self.kv_heads // tensor_parallel)
        return 2 * self.layers * heads * self.head_dim * width

    def kv_bytes(self, tokens: int, width: int = 2, *, tensor_parallel: int = 1) -> int:
        """Bytes on one device of a sequence of so many tokens: layers with a window keep no more than it."""
        layer = self.kv_bytes_per_token(width, tensor_parallel=tensor_parallel) // self.layers
        windowed = min(tokens, self.window) if self.window else tokens
        return layer * ((self.layers - self.windowed_layers) * tokens + self.windowed_layers * windowed)

    def padded_vocabulary(self, tensor_parallel: int = 1) -> int:
        """Rows of the engine's embedding: vLLM rounds each device's part up."""
        step = VOCABULARY_PADDING * tensor_parallel
        return -(-self.vocabulary // step) * step

    def engine_parameters(self, tensor_parallel: int = 1) -> int:
        """Parameters on one device of the engine: matrices are cut, norms are not (they are too small to matter)."""
        padding = (self.padded_vocabulary(tensor_parallel) - self.vocabulary) * self.hidden
        return (self.parameters + padding * (1 if self.tied else 2)) // tensor_parallel
