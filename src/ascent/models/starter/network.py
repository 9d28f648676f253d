"""The starter's tokenizer and its untrained network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

VOCABULARY = 512
LONGEST_CONTEXT = 256  # tokens of prompt and completion
_PAD, _EOS = "<pad>", "<eos>"


def new_tokenizer(texts: Iterable[str]) -> Any:
    """A byte-level BPE of 512 entries learnt from `texts`. Digits stay single, so that numbers share their tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[_PAD, _EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=_PAD, eos_token=_EOS, model_max_length=LONGEST_CONTEXT
    )


def new_network(tokenizer: Any, seed: int) -> Any:
    """A random Llama of 1.0 million parameters in float32: 4 layers, width 128, heads 32 wide (vLLM's CPU attention
    takes no narrower ones). Leaves torch's random state as it was."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST_CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).float()
