"""Random policies of every kind of model that a saving must fit, small enough for hundreds of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCABULARY = 300
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    # Larger than usual: attention looks at some tokens more than at others, and a wrong position or mask shows.
    "initializer_range": 0.12,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
    "attention_dropout": 0.0,
}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 256,
    "initializer_range": 0.12,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "router_aux_loss_coef": 0.1,
    "output_router_logits": True,
}
# name -> (transformers' model type, what its configuration says)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_SIZES, "tie_word_embeddings": False}),
    "llama-tied": ("llama", {**_SIZES, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {**_SIZES, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**_SIZES, "tie_word_embeddings": False}),
    "gemma": ("gemma", {**_SIZES, "tie_word_embeddings": True}),
    # Sees its last eight tokens only, fewer than a prompt has.
    "sliding": ("mistral", {**_SIZES, "tie_word_embeddings": False, "sliding_window": 8}),
    # Positions are learnt vectors and count the padding before a prompt: TRL hands over no position ids.
    "gpt2": ("gpt2", {**_GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    # The loss of its router is a mean over a micro-batch.
    "experts": ("qwen3_moe", {**_SIZES, **_EXPERTS, "tie_word_embeddings": False}),
}


def build_policy(kind: str, folder: Path) -> Path:
    """Write a policy of a kind of `KINDS` and its tokenizer into `folder`; the same weights every time."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate(["<pad>", "<eos>", *letters])}
    byte_level = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level, pad_token="<pad>", eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    model_type, settings = KINDS[kind]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings), dtype=torch.float32)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    model.save_pretrained(folder)
    torch.set_rng_state(state)
    return folder
