"""Log-probabilities of given tokens by a model's own head, without all of its logits at once.

With a vocabulary of 150,000 the logits of a batch are its largest tensor by far. The backbone runs once; the head is
then asked for a few positions at a time. (Of a model that doesn't call its own backbone, one row at a time.)
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from ascent.models.backbone import Forward, backbone_replaced, transformers_model

_LOGITS = 2**23  # at a time, at most (or one position's): 32 MiB in float32


@torch.no_grad()
def token_logps(
    model: torch.nn.Module,
    input_ids_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    count: int,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Log-probabilities (B, count), float32, of the last `count` tokens of each row, each after those before it, under
    the logits divided by `temperature`.

    Collective where the model's weights are sharded: ranks whose inputs have one shape call it equally often.
    """
    if count == 0:
        return torch.zeros(len(input_ids_BT), 0, device=input_ids_BT.device)
    base = transformers_model(model)
    targets_N = input_ids_BT[:, -count:].flatten()
    width = max(1, _LOGITS // base.get_input_embeddings().weight.shape[0])
    chunks = _Chunks(count, width)
    found: list[torch.Tensor] = []
    with backbone_replaced(base, chunks.backbone):
        for begin in range(0, len(targets_N), width):
            chunks.begin = begin
            logits_1NV = model(input_ids=input_ids_BT, attention_mask=attention_mask_BT, use_cache=False).logits
            if chunks.output is None:
                break
            found.append(_logps(logits_1NV[0], targets_N[begin : begin + width], temperature))
    if chunks.output is None:  # its forward doesn't go through its backbone, as with OPT
        return _row_by_row(model, input_ids_BT, attention_mask_BT, count, temperature)
    return torch.cat(found).view(len(input_ids_BT), count)


class _Chunks:
    """Stands in for a backbone: runs it once, and gives `width` of its hidden states before the last `count` tokens, in
    rows one after another, from `begin` on."""

    def __init__(self, count: int, width: int) -> None:
        self._count, self._width = count, width
        self.begin = 0
        self.output: Any = None

    def backbone(self, forward: Forward, *arguments: Any, **keywords: Any) -> Any:
        """The output of `forward` with (1, at most `width`, H) hidden states."""
        if self.output is None:
            self.output = forward(*arguments, **keywords)
            self._hidden_NH = self.output.last_hidden_state[:, -self._count - 1 : -1].flatten(0, 1)
        part = copy.copy(self.output)
        part["last_hidden_state"] = self._hidden_NH[None, self.begin : self.begin + self._width]
        return part


def _row_by_row(
    model: torch.nn.Module, ids_BT: torch.Tensor, mask_BT: torch.Tensor, count: int, temperature: float
) -> torch.Tensor:
    """With all logits of one row at a time."""
    found = []
    for ids_1T, mask_1T in zip(ids_BT.split(1), mask_BT.split(1), strict=True):
        logits_TV = model(input_ids=ids_1T, attention_mask=mask_1T, use_cache=False).logits[0, -count - 1 : -1]
        found.append(_logps(logits_TV, ids_1T[0, -count:], temperature))
    return torch.stack(found)


def _logps(logits_NV: torch.Tensor, targets_N: torch.Tensor, temperature: float) -> torch.Tensor:
    return (logits_NV.float() / temperature).log_softmax(-1).gather(1, targets_N[:, None])[:, 0]
