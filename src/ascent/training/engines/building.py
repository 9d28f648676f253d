"""The engine that a trainer samples with, and the walk over its weights that feeds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule
from trl.generation.vllm_generation import VLLMGeneration
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig as TRLConfig

from ascent.compat.lora_merge import adds_up, merged_parameters
from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings, RolloutEngine

if TYPE_CHECKING:
    from ascent.training.trainer import GRPOTrainer


def vllm_engine(trainer: GRPOTrainer, settings: EngineSettings | None) -> RolloutEngine:
    """vLLM in the trainer's process; without `settings` as the `vllm_*` fields of its arguments say."""
    from ascent.rollout.engines.colocated import LocalEngine
    from ascent.training.engines.settings import from_arguments

    return LocalEngine(settings or from_arguments(trainer.args, trainer.model, trainer.accelerator.num_processes))


def standing_servers(args: TRLConfig) -> RolloutEngine:
    """The service that `vllm_server_base_url` names (`vllm_mode="server"`). Raises InputError when there is none."""
    from ascent.training.engines.servers import connect

    if args.vllm_server_base_url is None:
        raise InputError(
            'vllm_mode="server" needs the servers',
            "Start them with `ascent serve MODEL`, and give vllm_server_base_url, or engine=ascent.connect(NAME). "
            "TRL's own server client is taken with plain=True.",
        )
    return connect(args.vllm_server_base_url, rank=args.process_index, processes=args.world_size)


def transformers_engine(trainer: GRPOTrainer) -> RolloutEngine:
    """The trainer's own model."""
    from ascent.rollout.engines.transformers import TransformersEngine

    checkpointing: Any = trainer.args.gradient_checkpointing_kwargs
    tokenizer: Any = trainer._tokenizer
    return TransformersEngine(
        lambda: unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            generation_kwargs=trainer.generation_kwargs,
            gradient_checkpointing_kwargs=checkpointing,
        ),
        eos_token_ids=trainer.eos_token_ids,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        max_model_len=context(trainer.model),
    )


def context(model: Any) -> int:
    """The model's own limit of prompt and completion, in tokens."""
    return int(model.config.get_text_config().max_position_embeddings)


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
