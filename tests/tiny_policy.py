"""A random policy small enough for tests: Llama, two layers, heads 32 wide (vLLM's CPU attention needs that)."""

from __future__ import annotations

from pathlib import Path


def build(folder: Path, *, tied: bool, dtype: str) -> Path:
    """Write model and tokenizer into `folder`; the same weights every time."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet)
    byte_level.train_from_iterator(["def f(a, b):\n    return a + b\n"] * 10, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level, pad_token="<pad>", eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    torch.set_rng_state(state)
    return folder
