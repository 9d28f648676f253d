"""What forward and backward passes keep: counted, tensor by tensor, from how transformers' decoders compute.

Each function says which tensors it counts. They are those that autograd saves (what a product needs of its other
factor), and those that live at once where a pass needs most. Counts assume fused attention (flash, or Ascend's
FlashAttentionScore), which saves queries, keys, values, its output and one number a head and token, and no matrix of
tokens x tokens (T. Dao et al., arXiv:2205.14135). V. Korthikanti et al. (arXiv:2205.05198) count the same for an older
decoder with dropout: 34 bytes a token and number of the model's width.
"""

from __future__ import annotations

from dataclasses import dataclass

from ascent.memory.cards import Kind
from ascent.memory.model import WIDTHS, Linear, Model
from ascent.memory.passes import Pass
from ascent.memory.settings import Trained

FLOAT32 = 4
# TRL's fused head (its kernels/chunked_logprob.py): so many tokens and words of the vocabulary at a time
TILE_TOKENS, TILE_WORDS = 4096, 32768
# Tiles of float32 that its forward and backward hold at once where there is no Triton (NPU, CPU); with it, none
FORWARD_TILES, BACKWARD_TILES = 3.0, 7.25


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of a number: of the weights, of what products are computed in, of the stream between layers, and of what
    adapters' products take. `casts`: weights and inputs are copied for products (autocast of float32 weights)."""

    weights: int
    compute: int
    stream: int
    casts: bool
    adapter: int

    @classmethod
    def of(cls, trained: Trained, *, gathered: bool = False) -> Precision:
        """Of a training. `gathered`: FSDP gathers weights in the precision of the products, so nothing is cast."""
        weights = WIDTHS[trained.dtype]
        compute, adapter = 2 if trained.autocast else weights, 2 if trained.autocast else FLOAT32
        if gathered:
            return cls(weights, compute, compute, casts=False, adapter=adapter)
        return cls(weights, compute, weights, casts=compute < weights, adapter=adapter)


def saved_by_layer(model: Model, tokens: int, precision: Precision, trained: Trained, *, dense: bool = True) -> float:
    """Bytes that one layer keeps for its backward pass, of `tokens` tokens."""
    full = trained.lora is None
    norm = _saved_by_norm(precision, full=full)
    numbers = model.norms * norm * model.hidden
    numbers += _inputs(model.hidden, 3, precision, full=full)
    if model.head_norms:
        numbers += norm * (model.query_width + model.key_width)
    c = precision.compute
    attention = (model.query_width + model.key_width + model.value_width + model.output_width) * c
    attention += model.heads * FLOAT32  # the logarithms of attention's sums
    numbers += attention
    if not full:
        numbers += _inputs(model.output_width, 1, precision, full=False)
        numbers += 7 * (trained.lora or 0) * precision.adapter  # between an adapter's two matrices
    if dense or model.experts is None:
        return tokens * (
            numbers + _saved_by_mlp(model.hidden, model.intermediate, precision, full=full, gated=model.gated)
        )
    experts = model.experts
    numbers += experts.count * FLOAT32 * 2  # the router's logits and probabilities
    stacked = 0.0
    if not full and experts.adapted:  # adapters of a stack are added to its weights: a copy of them
        stacked = 3.0 * experts.count * model.hidden * experts.intermediate * precision.weights
    each = _saved_by_mlp(model.hidden, experts.intermediate, precision, full=True, gated=model.gated)
    numbers += experts.per_token * (each + 2 * model.hidden * c)  # gathered for each expert, and weighed
    if experts.shared:
        numbers += _saved_by_mlp(model.hidden, experts.shared, precision, full=full, gated=model.gated)
    return tokens * numbers + stacked


def _saved_by_norm(precision: Precision, *, full: bool) -> float:
    """Bytes for each number: its input in float32; where the norm's weight is trained, what is multiplied by it."""
    return FLOAT32 + (precision.stream if full else 0)


def _inputs(width: int, copies: int, precision: Precision, *, full: bool) -> float:
    """Bytes for each token that matrices save of an input of that width, which `copies` of them take.

    Full weights save it once, or a copy for each product that casts it. Frozen ones save nothing, but each adapter
    does: the input as it is, or a copy of its own in the precision of the adapter's product.
    """
    if full:
        return width * (copies * precision.compute if precision.casts else precision.stream)
    if precision.weights == FLOAT32 and not precision.casts:
        return width * FLOAT32
    return width * copies * precision.adapter


def _saved_by_mlp(hidden: int, inner: int, precision: Precision, *, full: bool, gated: bool) -> float:
    """Bytes a token: the input, gate and its activation, the other product, and what the last matrix takes."""
    c = precision.compute
    inputs = _inputs(hidden, 2 if gated else 1, precision, full=full)
    kept = inner * c * (3 if gated else 1)
    return inputs + kept + (inner * c if full else _inputs(inner, 1, precision, full=False))


def kept(model: Model, largest: Pass, precision: Precision, trained: Trained) -> tuple[float, float]:
    """Bytes that all layers keep until the backward pass begins, and those of the one layer that is computed again
    where layers are checkpointed (T. Chen et al., arXiv:1604.06174; 0 where they aren't)."""
    dense = model.dense_layers
    tokens, beside = largest.tokens, beside_tokens(model, largest, precision, trained)
    of = {kind: saved_by_layer(model, tokens, precision, trained, dense=kind) + beside for kind in (True, False)}
    if trained.checkpointing:
        again = of[False] if dense < model.layers else of[True]
        return model.layers * tokens * model.hidden * precision.stream, again
    return dense * of[True] + (model.layers - dense) * of[False], 0.0


def beside_tokens(model: Model, largest: Pass, precision: Precision, trained: Trained) -> float:
    """Bytes that a layer keeps beside what its tokens need everywhere. A mask, which fused attention takes in the
    precision of the queries; keys and values of prompts that were computed once, copied to each completion; and with a
    mask keys and values are repeated for all heads (transformers' `use_gqa_in_sdpa`). Attention that isn't fused keeps
    its probabilities, of each head and pair of tokens, in float32 and in the precision of the products."""
    if not trained.fused_attention:
        return largest.tokens * largest.width * model.heads * (FLOAT32 + precision.compute)
    if not largest.pairs:
        return 0.0
    whole = model.query_width + model.output_width
    repeated = largest.tokens * (whole - model.key_width - model.value_width)
    return (largest.pairs + largest.prompts * whole + repeated) * precision.compute


def layer_transients(model: Model, tokens: int, precision: Precision) -> float:
    """Bytes that live at once while a layer's MLP is computed, beside what is kept: three products of its width, and
    the stream with its sum."""
    inner = model.intermediate
    if model.experts is not None and model.dense_layers < model.layers:
        inner = max(model.experts.per_token * model.experts.intermediate, model.experts.shared)
    return tokens * (3.0 * inner * precision.compute + 3.0 * model.hidden * precision.stream)


def head_forward(model: Model, scored: int, precision: Precision, trained: Trained, kind: Kind) -> float:
    """Bytes of the head's forward pass over `scored` tokens."""
    if trained.logits == "full":
        return scored * model.vocabulary * (precision.compute + 2.0 * FLOAT32)
    tiles = 0.0 if kind == "cuda" else FORWARD_TILES * _tile(model, scored) * FLOAT32
    return _buffer(model, scored, precision, kind) + tiles + scored * model.hidden * precision.compute


def head_backward(model: Model, scored: int, precision: Precision, trained: Trained, kind: Kind) -> float:
    """Bytes of the head's backward pass: tiles, the gradient of what it was given, and that of its weights where these
    are trained, both in float32."""
    gradients = scored * model.hidden * FLOAT32
    if trained.lora is None:
        gradients += model.vocabulary * model.hidden * FLOAT32
    if trained.logits == "full":
        return scored * model.vocabulary * (precision.compute * 2 + 2.0 * FLOAT32) + gradients
    tiles = 0.0 if kind == "cuda" else BACKWARD_TILES * _tile(model, scored) * FLOAT32
    return _buffer(model, scored, precision, kind) + tiles + gradients


def _tile(model: Model, scored: int) -> int:
    return min(scored, TILE_TOKENS) * min(model.vocabulary, TILE_WORDS)


def _buffer(model: Model, scored: int, precision: Precision, kind: Kind) -> int:
    """As wide as a tile, however small the vocabulary; but on CPU what isn't written to isn't taken."""
    words = min(model.vocabulary, TILE_WORDS) if kind == "cpu" else TILE_WORDS
    return min(scored, TILE_TOKENS) * words * precision.compute


def casts(model: Model, precision: Precision, trained: Trained, *, backward: bool) -> float:
    """Bytes of the copies of weights that autocast makes for products.

    torch keeps casts of trained float32 weights until a pass has ended, but not of one expert out of a stack. A graph
    keeps those that its backward needs: all layers', or one layer's where layers are checkpointed.
    """
    if not precision.casts:
        return 0.0
    whole = model.linear_parameters(experts=True) * precision.compute
    if backward and not trained.checkpointing:
        return whole
    if trained.lora is None:
        return model.linear_parameters(experts=False) * precision.compute
    return whole / model.layers


def router_loss(model: Model, tokens: int) -> float:
    """Bytes of a mixture's balance loss: each layer's router probabilities twice in float32, and for each token the
    chosen experts as rows of zeros and one, once in 64-bit integers and thrice in float32 (transformers'
    `load_balancing_loss_func`)."""
    experts = model.experts
    if experts is None:
        return 0.0
    layers = model.layers - model.dense_layers
    return layers * tokens * experts.count * (2.0 * FLOAT32 + experts.per_token * (8 + 3 * FLOAT32))


def largest_gradient(linears: tuple[Linear, ...], precision: Precision) -> float:
    """Bytes of the largest matrix's gradient, before it is added to what is there."""
    return max(each.inputs * each.outputs * each.count for each in linears) * precision.weights
