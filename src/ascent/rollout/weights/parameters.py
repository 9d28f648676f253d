"""The weights that are being trained, walked over as a Hugging Face checkpoint names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from trl.generation.vllm_generation import VLLMGeneration

from ascent.compat.lora_merge import adds_up, merged_parameters
from ascent.rollout.engine import Canary
from ascent.rollout.weights.adapters import adapter_tensors
from ascent.rollout.weights.content import content_digest
from ascent.rollout.weights.verify.canary_sequences import measure


class ParameterWalk(VLLMGeneration):
    """TRL's walk over a model's full parameters (PEFT merged, FSDP and ZeRO gathered), without its engine."""

    def _init_vllm(self) -> None: ...

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(checkpoint name, full tensor) of every parameter. Collective: every process must iterate to the end."""
        units = [module for module in self.model.modules() if isinstance(module, FSDPModule)]
        for unit in units:
            unit.reshard()  # a forward pass leaves the outermost one gathered, in the dtype of the pass
        version = self._dist.fsdp_version
        if version == 2 and not units:  # the model is cut when training begins
            self._dist.fsdp_version = None
        try:
            if not self._dist.is_fsdp and not self._dist.is_zero3 and adds_up(self.model):
                yield from self._merged()
            else:
                yield from self._iter_named_params()
        finally:
            self._dist.fsdp_version = version

    def _merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in merged_parameters(self.model):
            name = name.removeprefix("base_model.model.").replace(".base_layer", "")
            yield self._fix_param_name_to_vllm(name, extra_prefixes=["modules_to_save.default."]), value


class PolicyWeights:
    """The weights of the policy, for the sampler (`TrainedWeights`)."""

    def __init__(
        self,
        model: Any,
        accelerator: Any,
        tokenizer: Any,
        *,
        steps_done: Callable[[], int],
        digested: bool,
        adapter: bool = False,
        canary_sequences: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """`steps_done` counts the optimizer steps. With `adapter` the walk is over the adapter alone. Without
        `canary_sequences` there is no canary, and without `digested` no content: for an engine that samples with this
        very model."""
        self._model, self._accelerator, self._steps_done = model, accelerator, steps_done
        self._digested, self._adapter = digested, adapter
        self._walk = ParameterWalk(model, accelerator, tokenizer)
        self._canary_sequences = tuple(canary_sequences)

    @property
    def steps(self) -> int:
        """See TrainedWeights."""
        return self._steps_done()

    def content(self) -> str:
        """See TrainedWeights."""
        return content_digest(self._model) if self._digested else ""

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See TrainedWeights."""
        return adapter_tensors(self._model) if self._adapter else self._walk.named_tensors()

    def canary(self) -> Canary | None:
        """See TrainedWeights."""
        if not self._canary_sequences:
            return None
        return measure(self._model, self._canary_sequences, computing_dtype(self._model, self._accelerator))


def computing_dtype(model: Any, accelerator: Any) -> str:
    """What a forward pass of the trainer computes in: that of mixed precision, else that of the weights."""
    mixed = {"bf16": "bfloat16", "fp16": "float16"}.get(accelerator.mixed_precision)
    return mixed or str(next(model.parameters()).dtype).removeprefix("torch.")
