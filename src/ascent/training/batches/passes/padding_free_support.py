"""Which models may have their sequences packed into one row: their attention takes the boundaries, and it is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.utils.generic import is_flash_attention_requested

from ascent.compat.npu_flash_attention import left_out
from ascent.errors import InputError
from ascent.training.batches.passes.padding_free import PaddingFreeForward, causal_model
from ascent.training.dropout import drops_out

Setting = Literal["auto", "on", "off"]
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_ROTARY_BY_LENGTH = {"dynamic", "longrope"}  # turned by the longest sequence of the row
_LENGTHS = (5, 7)  # of the sequences that are tried


class Packing:
    """The setting `packing`, decided once for a model: at the first forward pass, once it is where it computes."""

    def __init__(self, setting: Setting, forward: PaddingFreeForward, tell: Callable[[str], None]) -> None:
        """`tell` gets one sentence about what `auto` decided, and why. Raises InputError for another setting."""
        if setting not in ("auto", "on", "off"):
            raise InputError(f"packing={setting!r}: should be auto, on or off")
        self._setting, self._forward, self._tell = setting, forward, tell
        self._decided = setting == "off"
        self._usable = False

    def forward_for(self, model: Any) -> PaddingFreeForward | None:
        """How `model` is computed without padding; None where it is not. At the first call two short sequences are
        packed and computed, without gradients, by all ranks alike. Raises InputError when `on` can't be had."""
        if not self._decided:
            reason = refusal(causal_model(model)) or mixing(model, self._forward)
            if reason is not None and self._setting == "on":
                raise InputError(f"packing=on: {reason}", 'Set packing to "auto" or "off".')
            self._decided, self._usable = True, reason is None
            if reason is None:
                self._tell("packing: batches are computed without padding")
            elif takes_boundaries(causal_model(model)):  # others have other ways to waste little
                self._tell(f"packing: not: {reason}")
        return self._forward if self._usable else None


def takes_boundaries(model: Any) -> bool:
    """Whether the attention of a transformers model is one that can be told where sequences end."""
    attention = model.config.get_text_config()._attn_implementation
    return bool(is_flash_attention_requested(requested_attention_implementation=attention))


def refusal(model: Any) -> str | None:
    """Why sequences of a transformers model can't share a row, as far as its configuration tells; None if they can."""
    config = model.config.get_text_config()
    attention = config._attn_implementation
    if config is not model.config:
        return "the model takes images or sound, whose places in a row aren't kept"
    if not takes_boundaries(model):
        return (
            f"attention {attention} takes no boundaries, so it would compute every pair of the row's tokens "
            "(model.attn_implementation=flash_attention_2 takes them)"
        )
    layers = set(getattr(config, "layer_types", None) or ())
    if unknown := sorted(layers - _KNOWN_LAYERS):
        return f"layers of kind {', '.join(unknown)} carry one sequence over into the next"
    if getattr(model, "_is_stateful", False):
        return f"{type(model).__name__} has a state that carries one sequence over into the next"
    if missing := left_out(config, model.device):
        return f"transformers' attention on this device ignores {', '.join(missing)}"
    if drops_out(model):
        return "the model drops out at random, so that its numbers depend on how sequences are laid out"
    return _positions(config)


def mixing(model: Any, forward: PaddingFreeForward) -> str | None:
    """Try it: what is wrong with two packed sequences; None if nothing is.

    Each is exchanged in turn, which must leave the other's log-probabilities as they were to the last bit.
    """
    first, second, other_first, other_second = (
        [start + place for place in range(length)] for start in (3, 11) for length in _LENGTHS
    )
    pairs = ((first, second), (other_first, second), (first, other_second))
    with torch.no_grad():
        as_is, one, two = (_logps_of_pair(model, forward, pair) for pair in pairs)
    if torch.equal(as_is[0], one[0]) or torch.equal(as_is[1], two[1]):
        return "another sequence has the same log-probabilities, so nothing can be tried on this model"
    if not (torch.equal(as_is[1], one[1]) and torch.equal(as_is[0], two[0])):
        return "its attention mixed two packed sequences when it was tried"
    return None


def _logps_of_pair(model: Any, forward: PaddingFreeForward, pair: tuple[list[int], list[int]]) -> Tensor:
    """Log-probabilities (2, longest - 1) of all tokens but the first of each."""
    device, vocabulary = causal_model(model).device, causal_model(model).config.get_text_config().vocab_size
    rows = [torch.tensor(ids) % vocabulary for ids in pair]
    ids_BL = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
    mask_BL = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(device)
    return forward.logps(model, ids_BL, mask_BL, ids_BL.shape[1] - 1)[0]


def _positions(config: Any) -> str | None:
    """Positions start anew with each sequence of a row, while TRL's count the padding before a prompt: only rotary
    positions give the same for both."""
    rotary = getattr(config, "rope_parameters", None)
    if not rotary:
        return "its positions aren't rotary, so they would differ from those of padded rows"
    # one set of parameters, or one for each kind of layer
    for each in [rotary] if "rope_type" in rotary else [part for part in rotary.values() if isinstance(part, dict)]:
        if each.get("rope_type") in _ROTARY_BY_LENGTH:
            return f"its rotary positions ({each['rope_type']}) depend on the longest sequence of a row"
    return None
