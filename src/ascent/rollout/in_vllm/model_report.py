"""What a vLLM model holds and computes, in terms of the checkpoint's parameters.

- `read_back`: fingerprints of parameters that lie in the model as in the checkpoint, fused ones taken apart.
- `probes`: for each linear layer and the output head, what its own forward gives for the known input (`probe`), by
  checkpoint parameter: rows `[first, end)` of it, all its columns or (row-parallel) a part of them.
- `padding`: rows beyond the vocabulary that are not zero.
- `parts_not_sent`: parts of fused layers that did not come in, although others did.
- `unseen`: parameters of the checkpoint that none of these touch.

Loaded inside vLLM's processes: the standard library, torch and vllm only.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ascent.rollout.in_vllm import probe
from ascent.rollout.in_vllm.fingerprints import fingerprint


@dataclass(frozen=True, slots=True)
class Sent:
    """A parameter of the checkpoint as it came in."""

    fingerprint: str
    dtype: str
    shape: tuple[int, ...]
    on_device: bool  # where its fingerprint was computed: on the device, or on the host


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a layer's weight or bias that are (a part of) one parameter of the checkpoint."""

    name: str  # the checkpoint's
    kind: str  # "weight" or "bias"
    rows: tuple[int, int]  # in the layer
    first_row: int  # in the checkpoint's parameter
    whole: bool  # all of the parameter lies here
    by_input: bool  # tensor parallelism cuts the columns: outputs are to be summed over ranks


def model_report(model: Any, sent: dict[str, Sent], seed: str, dtype: str) -> dict[str, Any]:
    """The report that this module's head describes, as plain JSON.

    `sent` holds the checkpoint's parameters as they came in, by name; `seed` draws the probes' input; `dtype` is what
    the model computes in.
    """
    names = _model_names(model, list(sent))
    read_back: dict[str, str] = {}
    probes: list[dict[str, Any]] = []
    padding: list[str] = []
    not_sent: list[str] = []
    for path, layer in model.named_modules():
        if getattr(layer, "quant_method", None) is None or not hasattr(layer, "weight"):
            continue
        weights = list(_pieces(model, path, layer, "weight", names))
        not_sent += _parts_not_sent(model, path, weights, names)
        for piece in [*weights, *_pieces(model, path, layer, "bias", names)]:
            read_back.update(_read_back(layer, piece, sent))
        if weights and (_has_forward(path, layer) or not weights[0].whole):
            probes += _probed(path, layer, weights, seed, dtype)
        if not _is_clean_beyond_vocabulary(layer):
            padding.append(path)
    for name, parameter in model.named_parameters():
        hf_name = names.get(name)
        if hf_name is not None and hf_name not in read_back and tuple(parameter.shape) == sent[hf_name].shape:
            read_back[hf_name] = fingerprint(hf_name, _as_sent(parameter, sent[hf_name]))
    unseen = set(sent) - set(read_back) - {found["name"] for found in probes}
    return {
        "read_back": read_back,
        "probes": probes,
        "padding": padding,
        "parts_not_sent": not_sent,
        "unseen": sorted(unseen),
    }


def _model_names(model: Any, names: list[str]) -> dict[str, str]:
    """The model's own (unfused) name of each checkpoint parameter -> the checkpoint's name."""
    mapper: Any = getattr(model, "hf_to_vllm_mapper", None)
    if hasattr(mapper, "get_rename_mapper"):  # newer ones also say where a parameter goes in a fused one
        mapper = mapper.get_rename_mapper()
    found = {}
    for name in names:
        mapped = [name] if mapper is None else mapper.apply_list([name])
        if mapped:
            found[mapped[0]] = name
    return found


def _parts(model: Any, path: str) -> list[str]:
    """The checkpoint's modules that the module at `path` consists of, under the model's own names."""
    parent, _, leaf = path.rpartition(".")
    mapping = getattr(model, "packed_modules_mapping", None) or {}
    return [f"{parent}.{part}" if parent else part for part in mapping.get(leaf, [leaf])]


def _parts_not_sent(model: Any, path: str, weights: list[Piece], names: dict[str, str]) -> list[str]:
    """Parts of a fused layer that did not come in although others did."""
    parts = _parts(model, path)
    if not weights or len(weights) == len(parts):
        return []
    return [f"{part}.weight" for part in parts if f"{part}.weight" not in names]


def _pieces(model: Any, path: str, layer: Any, kind: str, names: dict[str, str]) -> Iterator[Piece]:
    """The parts of `layer`'s weight or bias, by checkpoint parameter; none where the layout isn't known."""
    parts = _parts(model, path)
    sizes = _row_counts(layer)
    tp_rank, tp_size = getattr(layer, "tp_rank", 0), getattr(layer, "tp_size", 1)
    by_input = hasattr(layer, "input_is_parallel") and tp_size > 1  # row-parallel
    if len(parts) == 1:
        if len(sizes) > 1 and tp_size > 1:
            return  # fused in the checkpoint already and cut in a way of the layer's own
        sizes = [sum(sizes)]
    if len(parts) != len(sizes):
        return
    start = 0
    for place, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        name = names.get(f"{part}.{kind}") or _tied_name(model, path, layer, kind, names)
        if name is not None:
            first = 0 if by_input else size * _shard(layer, place, tp_rank, tp_size)
            first = getattr(getattr(layer, "shard_indices", None), "org_vocab_start_index", first)
            yield Piece(name, kind, (start, start + size), first, tp_size == 1, by_input)
        start += size


def _row_counts(layer: Any) -> list[int]:
    shard = getattr(layer, "shard_indices", None)
    if shard is not None:  # a vocabulary; padding rows follow
        return [shard.num_org_elements]
    return list(getattr(layer, "output_partition_sizes", ())) or [layer.output_size]


def _shard(layer: Any, place: int, tp_rank: int, tp_size: int) -> int:
    """Which part of a checkpoint parameter's rows this rank has."""
    if tp_size == 1:
        return 0
    replicas = getattr(layer, "num_kv_head_replicas", 1) if place else 1  # key and value heads may be copied
    return tp_rank // replicas


def _tied_name(model: Any, path: str, layer: Any, kind: str, names: dict[str, str]) -> str | None:
    """The checkpoint's name of the embedding that an output head shares its weight with."""
    if kind != "weight" or not _is_head(path, layer):
        return None
    for other, module in model.named_modules():
        if module is not layer and getattr(module, "weight", None) is layer.weight:
            return names.get(f"{other}.weight")
    return None


def _is_head(path: str, layer: Any) -> bool:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return isinstance(layer, ParallelLMHead) or path.rpartition(".")[2] == "lm_head"


def _has_forward(path: str, layer: Any) -> bool:
    from vllm.model_executor.layers.linear import LinearBase

    return isinstance(layer, LinearBase) or _is_head(path, layer)


def _read_back(layer: Any, piece: Piece, sent: dict[str, Sent]) -> dict[str, str]:
    """The fingerprint of a parameter as it lies here; nothing when it is packed away, or only a part of it is here."""
    parameter = getattr(layer, piece.kind)
    if parameter is None or not piece.whole or parameter.numel() == 0:
        return {}
    rows = parameter[piece.rows[0] : piece.rows[1]]
    if tuple(rows.shape) != sent[piece.name].shape:
        return {}
    return {piece.name: fingerprint(piece.name, _as_sent(rows, sent[piece.name]))}


def _as_sent(parameter: torch.Tensor, sent: Sent) -> torch.Tensor:
    """A parameter in the dtype in which it was sent: an engine that widened it holds the same values."""
    tensor = parameter.detach().to(getattr(torch, sent.dtype))
    return tensor if sent.on_device else tensor.cpu()


def _probed(path: str, layer: Any, pieces: list[Piece], seed: str, dtype: str) -> list[dict[str, Any]]:
    device = layer.weight.device
    width = layer.embedding_dim if hasattr(layer, "embedding_dim") else layer.input_size
    given = probe.inputs(seed, width, dtype, str(device))
    columns = probe.columns(seed, width)
    first, end = 0, width
    if pieces[0].by_input:
        first = layer.tp_rank * layer.input_size_per_partition
        end = first + layer.input_size_per_partition
    given = given[:, first:end].contiguous()
    if _has_forward(path, layer):
        outputs = layer.quant_method.apply(layer, given, None).cpu()
    else:  # a part of an embedding, which lies here as it is
        outputs = torch.nn.functional.linear(given, layer.weight).cpu()
    exact = dtype != "float32" or device.type == "cpu"  # elsewhere float32 products may be rounded to fewer bits
    on_this_rank = [column for column in columns if exact and first <= column < end]
    found = []
    for piece in pieces:
        rows = outputs[:, piece.rows[0] : piece.rows[1]]
        dense = base64.b64encode(rows[0].float().numpy().tobytes()).decode()
        found.append(
            {
                "name": piece.name,
                "layer": path,
                "first_row": piece.first_row,
                "partial": piece.by_input,
                "signs": dense,
                "columns": on_this_rank,
                "columns_digest": probe.columns_digest(rows[[1 + columns.index(column) for column in on_this_rank]]),
            }
        )
    return found


def _is_clean_beyond_vocabulary(layer: Any) -> bool:
    """Whether the rows that only pad a vocabulary are zero, as vLLM's loader leaves them."""
    shard = getattr(layer, "shard_indices", None)
    if shard is None or layer.weight.numel() == 0:
        return True
    return not bool(layer.weight[shard.num_org_elements : shard.num_org_elements_padded].any())
