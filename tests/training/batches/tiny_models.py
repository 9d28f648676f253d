"""Random decoders of two layers, one of each family that `support.FAMILIES` names, and ragged batches for them."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace
from typing import Any

import torch

VOCABULARY = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # far from uniform distributions, so that a wrong mask shows
}
# What a family needs beside the sizes, to be small and without chance.
OF_FAMILY: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 64, "attn_implementation": "eager"},
    "gemma3_text": {"query_pre_attn_scalar": 8, "sliding_window": 64},
    "phi": {"head_dim": 8, "partial_rotary_factor": 0.5},
    "mixtral": {"num_local_experts": 4, "sliding_window": None},
    "qwen2_moe": {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "exaone4": {"sliding_window": 64, "sliding_window_pattern": 2},
    "ministral": {"sliding_window": 64},
    "seed_oss": {"attention_dropout": 0.0, "residual_dropout": 0.0},
    "starcoder2": {"sliding_window": None},
    # not in FAMILIES: absolute positions, alibi
    "gpt2": {"n_head": 4, "n_embd": 32, "n_layer": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bloom": {"n_head": 4, "n_layer": 2, "attn_implementation": "eager"},
}


def build(
    family: str = "llama", *, temperature: float = 0.8, fused: bool = True, seed: int = 0, **settings: Any
) -> Any:
    """A causal language model of a family, float32, with TRL's fused head."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    arguments = {**SIZES, **OF_FAMILY.get(family, {}), **settings}
    attention = arguments.pop("attn_implementation", "sdpa")
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **arguments)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    if fused:
        add_fused_lm_head(model, temperature=0.8, outputs=("log_probs", "entropy"))
    return model.train()


def trl_pass(
    model: Any, ids_BT: Any, mask_BT: Any, width: int, batch_size: int | None = None, compute_entropy: bool = False
) -> Any:
    """TRL's own pass, out of its trainer."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer: Any = SimpleNamespace(accelerator=SimpleNamespace(autocast=contextlib.nullcontext, is_main_process=False))
    logps, entropies, _ = GRPOTrainer._get_per_token_logps_and_entropies(
        trainer, model, ids_BT, mask_BT, width, batch_size=batch_size, compute_entropy=compute_entropy
    )
    return logps, entropies


def padded(rows: list[tuple[list[int], list[int]]], prompt_width: int = 0, width: int = 0) -> Any:
    """`input_ids`, `attention_mask`, `logits_to_keep` of prompts and completions, as TRL pads them."""
    prompt_width = max(prompt_width, *(len(prompt) for prompt, _ in rows))
    width = max(width, *(len(completion) for _, completion in rows))
    ids = torch.zeros(len(rows), prompt_width + width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(rows):
        ids[row, prompt_width - len(prompt) : prompt_width] = torch.tensor(prompt)
        ids[row, prompt_width : prompt_width + len(completion)] = torch.tensor(completion)
        mask[row, prompt_width - len(prompt) : prompt_width + len(completion)] = 1
    return ids, mask, width


def ragged(seed: int, groups: int = 3, size: int = 4, longest: int = 12) -> list[tuple[list[int], list[int]]]:
    """Groups of a prompt and some completions, among them equal ones, ones of a single token and empty ones; the second
    prompt begins like the first, the third is a single token."""
    chance = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(3, VOCABULARY) for _ in range(count)]

    rows = []
    first = tokens(chance.randint(4, 20))
    for group in range(groups):
        prompt = [first, first[:3] + tokens(5), tokens(1)][group] if group < 3 else tokens(chance.randint(1, 20))
        completions = [tokens(chance.randint(1, longest)) for _ in range(size)]
        completions[1] = list(completions[0])
        if size > 3:
            completions[2], completions[3] = tokens(1), [] if group == 1 else completions[3]
        rows += [(prompt, completion) for completion in completions]
    return rows
