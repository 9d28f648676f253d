"""The inference check before training: does the engine sample, how fast, and as the trainer's model would?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascent import devices
from ascent.models.folder import load_tokenizer, model_folder
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.rollout.engines.colocated import ColocatedEngine
from ascent.rollout.platform import engine_kind
from ascent.types import Completion, EngineStats, RolloutRequest, Sampling


@dataclass(frozen=True, slots=True)
class SamplingCheck:
    """Completions, their speed, and how far the engine's log-probabilities lie from the trainer's model's.

    The differences are absolute, in nats, over all sampled tokens.
    """

    model: str
    device: str
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    finish_reasons: tuple[str, ...]
    tokens_per_second: float
    logp_difference_mean: float
    logp_difference_max: float
    engine: EngineStats

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        return {"schema": "ascent.generate/1", **asdict(self)}

    def to_text(self) -> str:
        """For people: every completion, then speed and differences."""
        lines = []
        for number, text in enumerate(self.texts):
            ended = "ended by itself" if self.finish_reasons[number] == "stop" else "cut at the longest allowed"
            lines.append(f"--- completion {number + 1}: {self.tokens[number]} tokens, {ended}\n{text}")
        lines.append(
            f"--- {sum(self.tokens)} tokens at {self.tokens_per_second:.0f} tokens/s on {self.device}\n"
            f"log-probability difference to transformers: mean {self.logp_difference_mean:.2g}, "
            f"largest {self.logp_difference_max:.2g}"
        )
        return "\n".join(lines)


def check_sampling(
    path: str, prompts: Sequence[str], *, n: int, max_tokens: int, temperature: float, seed: int, dtype: str | None
) -> SamplingCheck:
    """Sample `n` completions of each prompt with vLLM and score the same tokens with transformers.

    Prompts become chat messages when the tokenizer has a chat template. Raises InputError for a model, a machine or a
    prompt that can't be used.
    """
    folder = model_folder(path)
    tokenizer = load_tokenizer(folder)
    platform = engine_kind()
    on_cpu = platform == "cpu"
    dtype = dtype or ("float32" if on_cpu else "bfloat16")
    asked = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    longest = max(len(ids) for ids in asked)
    settings = EngineSettings(
        str(folder),
        dtype,
        max_model_len=longest + max_tokens,
        kv_cache_bytes=512 * 2**20 if on_cpu else None,
        enforce_eager=platform != "cuda",
    )
    engine = ColocatedEngine(settings)
    try:
        sampling = Sampling(max_tokens, temperature, stop_token_ids=(tokenizer.eos_token_id,))
        completions = sample(engine, asked, n, sampling, seed)
        stats = engine.stats()
    finally:
        engine.close()
    mean, largest = logp_differences(load_policy(folder, dtype), completions, temperature)
    return SamplingCheck(
        model=path,
        device=devices.name(),
        texts=tuple(tokenizer.decode(c.token_ids, skip_special_tokens=True) for c in completions),
        tokens=tuple(len(c.token_ids) for c in completions),
        finish_reasons=tuple(c.finish_reason for c in completions),
        tokens_per_second=stats.tokens_per_second,
        logp_difference_mean=mean,
        logp_difference_max=largest,
        engine=stats,
    )


def prompt_ids(tokenizer: Any, prompt: str) -> tuple[int, ...]:
    """A prompt's tokens: as a chat message when the tokenizer has a template for them, else as plain text."""
    if tokenizer.chat_template is None:
        return tuple(tokenizer(prompt)["input_ids"])
    messages = [{"role": "user", "content": prompt}]
    return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])


def sample(
    engine: RolloutEngine, prompts: Sequence[tuple[int, ...]], n: int, sampling: Sampling, seed: int
) -> list[Completion]:
    """`n` completions of each prompt, in order; the same seed gives the same draws."""
    engine.submit([RolloutRequest(str(i), ids, n, sampling, seed + 1000 * i) for i, ids in enumerate(prompts)])
    completions: list[Completion] = []
    while engine.unfinished():
        completions += engine.poll()
    return sorted(completions, key=lambda completion: (int(completion.group_id), completion.index))


def load_policy(folder: Path, dtype: str, *, trust_remote_code: bool = False) -> Any:
    """The model as transformers loads it, on the device that trains."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
    )
    return model.to(devices.current())


def logp_differences(model: Any, completions: Sequence[Completion], temperature: float) -> tuple[float, float]:
    """Mean and largest |engine - model| log-probability over all sampled tokens, in nats."""
    import torch

    from ascent.models.token_logps import token_logps

    differences = []
    for completion in completions:
        token_ids_C = torch.tensor(completion.token_ids, dtype=torch.long)
        ids_1T = torch.cat([torch.tensor(completion.prompt_ids), token_ids_C])[None].to(model.device)
        trainer_C = token_logps(model, ids_1T, torch.ones_like(ids_1T), len(token_ids_C), temperature or 1.0)[0].cpu()
        differences.append((trainer_C - torch.tensor(completion.logps)).abs())
    all_differences = torch.cat(differences)
    return float(all_differences.mean()), float(all_differences.max())
