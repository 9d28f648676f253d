"""Watches a pass module by module, and keeps the first tensor that isn't finite, forward or backward.

Each watched tensor costs a read from the device, so this is for a step that is known to be bad.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ascent.training.batches.rows import loss_mask
from ascent.training.numerics.finding import Finding

_MAY_BE_NAN = "sampling_per_token_logps"  # the ratio of a token that the sampler could not score is 1


class Trace:
    """`with Trace(model) as trace:` watches all passes inside. `found` holds the first of each kind, in their order."""

    def __init__(self, model: torch.nn.Module) -> None:
        """`model` is the model without wrappers of ranks."""
        self.found: list[Finding] = []
        self.pass_number = 0
        self._model = model
        self._handles: list[Any] = []
        self._mask_BT: Tensor | None = None
        self._finite_gradient = ""  # of the last output whose gradient was finite
        self._seen: set[str] = set()

    def __enter__(self) -> Trace:
        for name, parameter in self._model.named_parameters():
            self.look("weights", name, parameter.data)
            if parameter.requires_grad:
                hook = functools.partial(self._weight_gradient, name)
                self._handles.append(parameter.register_hook(hook))
        for name, module in self._model.named_modules():
            hook = functools.partial(self._output, name)
            self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
            self._handles.append(module.register_forward_pre_hook(self._input, with_kwargs=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self, rows: Mapping[str, Any]) -> None:
        """The next pass begins, over these rows."""
        self.pass_number += 1
        self._mask_BT, self._finite_gradient = None, ""
        self._rows = rows

    def end(self, loss: Tensor) -> None:
        """The pass has ended. Its loss and what it was given are looked at: where the outputs are finite, they tell."""
        mask_BC = loss_mask(dict(self._rows)).bool()
        for name, value in self._rows.items():
            if name == _MAY_BE_NAN or not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            self.look("input", name, value[mask_BC] if value.shape == mask_BC.shape else value)
        self.look("loss", "loss", loss)

    def look(self, kind: Any, where: str, tensor: Tensor) -> bool:
        """Keep what isn't finite in `tensor`, if it is the first of its kind; whether all of it is finite."""
        local = tensor.detach()
        local = local.to_local() if isinstance(local, DTensor) else local
        finite = torch.isfinite(local)
        if bool(finite.all()):
            return True
        if kind not in self._seen:
            self._seen.add(kind)
            nans = int(torch.isnan(local).sum())
            good = local[finite]
            self.found.append(
                Finding(
                    kind,
                    where,
                    after=self._finite_gradient if kind == "gradient" else "",
                    nans=nans,
                    infs=int((~finite).sum()) - nans,
                    numbers=local.numel(),
                    largest=float(good.abs().max()) if good.numel() else 0.0,
                    dtype=str(local.dtype).removeprefix("torch."),
                    pass_number=self.pass_number,
                    of_attention="attn" in where or "attention" in where,
                )
            )
        return False

    def _input(self, module: Any, positional: Any, keywords: Mapping[str, Any]) -> None:
        mask = keywords.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2:
            self._mask_BT = mask

    def _output(self, name: str, module: Any, positional: Any, keywords: Any, output: Any) -> None:
        for tensor in _tensors(output):
            self.look("output", name, self._real(tensor))
            if tensor.requires_grad:
                tensor.register_hook(functools.partial(self._gradient, name))

    def _real(self, tensor: Tensor) -> Tensor:
        """What is not padding: an attention that masks every key of a padded query may make NaN there, to no effect."""
        mask = self._mask_BT
        return tensor if mask is None or tensor.shape[:2] != mask.shape else tensor[mask.bool()]

    def _gradient(self, name: str, gradient: Tensor | None) -> None:
        if gradient is not None and self.look("gradient", name, gradient):
            self._finite_gradient = name

    def _weight_gradient(self, name: str, gradient: Tensor | None) -> None:
        if gradient is not None:  # as it is in DDP where an output or a weight has no part in the loss
            self.look("weight gradient", name, gradient)


def _tensors(output: Any) -> Iterator[Tensor]:
    """The floating point tensors in a module's output."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from _tensors(each)
    elif isinstance(output, (list, tuple)):
        for each in output:
            yield from _tensors(each)
