"""Adapters (PEFT) and an engine with weights of its own: how one goes there by itself, and those that it can't sample
as they are trained, which are refused before training.

Where an adapter doesn't go by itself, such an engine gets it merged into the weight under it, which is right where the
adapted layer computes what a plain layer with that weight does, wherever the weight is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ascent.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER_CONFIG = "adapter_config.json"

_TRANSFORMERS = "or sample with the trainer's own model (rollout.engine=transformers, use_vllm=False)."
# LoRA variants (names of PEFT's classes) whose effect depends on the tokens, or is drawn anew: no weight has it
_NOT_A_WEIGHT = {"ALoraLinearVariant": "aLoRA (alora_invocation_tokens)", "ArrowLinearVariant": "Arrow routing"}


def refuse_unmergeable(model: Any) -> None:
    """Raise InputError for adapters of `model` that vLLM would sample otherwise than they are trained."""
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper, TrainableTokensWrapper

    if not isinstance(model, PeftModel):
        return
    kind = str(model.active_peft_config.peft_type).rpartition(".")[2]
    if not isinstance(model.base_model, BaseTuner) or not hasattr(model.base_model, "merge_adapter"):
        raise InputError(
            f"adapters of kind {kind} are no weights that can be merged, so vLLM can't sample with them",
            f"Take LoRA, {_TRANSFORMERS}",
        )
    for name, module in model.named_modules():
        if isinstance(module, TrainableTokensWrapper):
            raise InputError(
                f"trainable_token_indices ({name}): single rows of an embedding don't reach vLLM",
                f"Leave them out, {_TRANSFORMERS}",
            )
        for variant in getattr(module, "lora_variant", {}).values():
            if type(variant).__name__ in _NOT_A_WEIGHT:
                raise InputError(
                    f"{_NOT_A_WEIGHT[type(variant).__name__]} ({name}) can't be merged into a weight, so vLLM can't "
                    "sample with it",
                    f"Take plain LoRA, {_TRANSFORMERS}",
                )
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not _tied(model) or head is None:
        return
    changed = [
        what
        for what, module in (("embed_tokens", embedding), ("lm_head", head))
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)
    ]
    if not changed or (len(changed) == 2 and _share_what_trains(embedding, head)):
        return
    raise InputError(
        f"adapters on {' and '.join(changed)} of a model whose embedding and output head are one weight "
        "(tie_word_embeddings): in training the two come apart, in vLLM they can't, so that it would sample from "
        "another policy than the one that is trained",
        "Take them out of target_modules and modules_to_save, train the whole embedding for both (modules_to_save with "
        f"ensure_weight_tying=True in LoraConfig), {_TRANSFORMERS}",
    )


def adapter_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The adapter that is trained, as PEFT's files have it: its tensors by name, and first under ADAPTER_CONFIG the
    bytes of its configuration."""
    import torch
    from peft.utils.save_and_load import get_peft_model_state_dict

    config = model.peft_config[model.active_adapter].to_dict()
    told = json.dumps(config, default=lambda value: sorted(value) if isinstance(value, set) else str(value))
    yield ADAPTER_CONFIG, torch.frombuffer(bytearray(told.encode()), dtype=torch.uint8)
    yield from get_peft_model_state_dict(model, adapter_name=model.active_adapter).items()


def refuse_unservable(model: Any) -> None:
    """Raise InputError for a model whose adapter vLLM can't have beside others."""
    from peft import LoraConfig, PeftModel

    mend = "Take plain LoRA on linear layers, or let the training have the servers for itself (rollout.adapter=false)."
    if not isinstance(model, PeftModel) or not isinstance(model.active_peft_config, LoraConfig):
        raise InputError("a training that shares servers with others trains a LoRA adapter, and this one doesn't", mend)
    config = model.active_peft_config
    found = {
        "use_dora": config.use_dora,
        "modules_to_save": config.modules_to_save,
        "bias": config.bias != "none",
        "rank_pattern or alpha_pattern": config.rank_pattern or config.alpha_pattern,
        "target_parameters": getattr(config, "target_parameters", None),
        "trainable_token_indices": getattr(config, "trainable_token_indices", None),
        "alora_invocation_tokens": getattr(config, "alora_invocation_tokens", None),
    }
    if wrong := [name for name, value in found.items() if value]:
        raise InputError(f"{', '.join(wrong)} of the LoRA configuration: vLLM has no adapters with it", mend)
    if any("embed" in name for name, _ in adapter_tensors(model)):
        raise InputError("an adapter on the embedding: vLLM has no such adapters", mend)


def refuse_head_adapter(peft_config: Any) -> None:
    """Raise InputError for an adapter on the output head, which would never be trained: TRL computes log-probabilities
    from the weight beneath it. (TRL says so too, with a traceback.)"""
    from peft.tuners.tuners_utils import check_target_module_exists

    if peft_config.target_modules and check_target_module_exists(peft_config, "lm_head"):
        raise InputError(
            "an adapter on lm_head would never be trained: log-probabilities are computed from the weight beneath it",
            "Take lm_head out of target_modules.",
        )


def _tied(model: Any) -> bool:
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    return bool(getattr(config, "tie_word_embeddings", False) or getattr(model.config, "tie_word_embeddings", False))


def _share_what_trains(embedding: Any, head: Any) -> bool:
    """Whether both have the same trained tensors, so that they stay equal (PEFT's ensure_weight_tying)."""

    def trained(module: Any) -> set[int]:
        return {part.untyped_storage().data_ptr() for part in module.parameters() if part.requires_grad}

    return bool(trained(embedding)) and trained(embedding) == trained(head)
