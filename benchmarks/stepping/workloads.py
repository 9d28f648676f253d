"""What is trained: policies, prompts and rewards of the workloads, the same for every system."""

from __future__ import annotations

import inspect
import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Reward = Callable[..., list[float]]
_CONTEXT = 1536


@dataclass(frozen=True, slots=True)
class Workload:
    """A synthetic one: a random Llama of 5 million parameters goes on with pieces of Python.

    `prompt` is the length of every prompt, `completion` the longest completion (tokens); of the vocabulary's 512
    entries, `ends` end a completion, so that a random policy's lengths are spread about 512 / ends. `samples` are drawn
    a step, `group` of each prompt, and trained on in `slices` micro-batches. With `half`, every second group has equal
    rewards.
    """

    prompt: int
    completion: int
    ends: int
    samples: int = 64
    group: int = 8
    slices: int = 4
    half: bool = False
    width: int = 256
    layers: int = 6

    @property
    def batches(self) -> dict[str, int]:
        """TRL's settings."""
        return {
            "per_device_train_batch_size": self.samples // self.slices,
            "gradient_accumulation_steps": self.slices,
            "num_generations": self.group,
            "max_completion_length": self.completion,
        }

    @property
    def context(self) -> int:
        """Tokens that the engine must have room for; prompts come out a little longer when they are read again."""
        return self.prompt + self.completion + 40


_QUICK, _RAGGED, _LONG = (24, 32, 24), (48, 512, 8), (800, 32, 16)
WORKLOADS = {
    "quick": Workload(*_QUICK),
    "ragged": Workload(*_RAGGED),
    "long": Workload(*_LONG),
    "quick-half": Workload(*_QUICK, half=True),
    "ragged-half": Workload(*_RAGGED, half=True),
    "long-half": Workload(*_LONG, half=True),
    "tiny": Workload(8, 8, 64, samples=8, group=4, slices=2, width=64, layers=2),  # to try the program
}
QUICKSTART = "quickstart"


def make_policy(workload: Workload, folder: Path) -> Path:
    """A random policy and its tokenizer; the same every time."""
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    from ascent.models.starter.network import new_tokenizer

    tokenizer = new_tokenizer([inspect.getsource(module) for module in (random, json, inspect)])
    ends = list(range(1, 1 + workload.ends))
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=workload.width,
            intermediate_size=3 * workload.width,
            num_hidden_layers=workload.layers,
            num_attention_heads=workload.width // 64 or 1,
            num_key_value_heads=workload.width // 64 or 1,
            max_position_embeddings=_CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=ends,
            pad_token_id=0,
        )
    ).float()
    network.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=0)
    tokenizer.save_pretrained(folder)
    network.save_pretrained(folder)
    return folder


def make_prompts(workload: Workload, tokenizer: Any, count: int = 400) -> list[str]:
    """Pieces of one text, in an order of their own."""
    ids = tokenizer(inspect.getsource(inspect))["input_ids"]
    draw = random.Random(0)
    starts = [draw.randrange(len(ids) - workload.prompt - 10) for _ in range(count)]
    return [tokenizer.decode(ids[start : start + workload.prompt]) for start in starts]


def free_reward(workload: Workload) -> Reward:
    """A reward that costs nothing: the text's checksum; with `half`, the same for every second group."""

    def reward(completions: Sequence[str], **_: Any) -> list[float]:
        return [
            0.5 if workload.half and place // workload.group % 2 else zlib.crc32(text.encode()) % 1000 / 1000
            for place, text in enumerate(completions)
        ]

    return reward


def free_verdicts(completions: Sequence[str], **_: Any) -> list[float]:
    """For the quickstart: as many are right as the starter gets right at first (three of ten), at no cost."""
    return [1.0 if zlib.crc32(text.encode()) % 10 < 3 else 0.1 for text in completions]
