"""The policy that is evaluated: an engine with the weights of a folder, and its tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.rollout.platform import engine_kind
from ascent.training.evaluate.plan import Plan
from ascent.training.evaluate.target import Target
from ascent.training.judging import Receive
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion, Sampling

_CPU_KV_CACHE_BYTES = 512 * 2**20
_ENGINE_SHARE = 0.85  # of the device: nothing trains beside it
_AT_ONCE = 256  # sequences, on an accelerator


@dataclass(slots=True)
class EnginePolicy:
    """See Policy. `progress()` is called for each completion."""

    engine: RolloutEngine
    tokenizer: Any
    plan: Plan
    step: int  # optimizer steps that made the weights
    eos_token_ids: tuple[int, ...]
    progress: Callable[[], None]

    @property
    def seed(self) -> int:
        """Of all completions."""
        return self.plan.seed

    def tokenize(self, prompts: Sequence[Any]) -> Sequence[Sequence[int]]:
        """See Policy; as the trainer tokenizes."""
        if isinstance(prompts[0], str):
            ids: list[list[int]] = self.tokenizer(text=list(prompts))["input_ids"]
            return ids
        rendered: list[list[int]] = self.tokenizer.apply_chat_template(
            list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True, **self.plan.template
        )["input_ids"]
        return rendered

    def sampling(self, *, greedy: bool) -> Sampling:
        """See Policy."""
        given: dict[str, Any] = dict(self.plan.sampling)
        if greedy:
            given |= {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
        return Sampling(self.plan.max_tokens, **given, stop_token_ids=self.eos_token_ids)

    def sample(self, groups: Sequence[LocalGroup], receive: Receive) -> list[Completion]:
        """See Policy."""
        by_id = {group.request.group_id: group for group in groups}
        found: dict[int, Completion] = {}
        self.engine.submit([group.request for group in groups])
        while self.engine.unfinished():
            for completion in self.engine.poll():
                group = by_id[completion.group_id]
                place = group.first + completion.index
                found[place] = replace(completion, weight_version=self.step)
                text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
                receive(place, group.row, text)
                self.progress()
        return [found[place] for place in sorted(found)]


@contextlib.contextmanager
def opened_policy(
    target: Target, tokenizer: Any, plan: Plan, *, longest_prompt: int, context: int, progress: Callable[[], None]
) -> Iterator[EnginePolicy]:
    """Load the model. `longest_prompt` and `context` are in tokens. Raises InputError where the machine can't."""
    eos = eos_token_ids(target.folder, tokenizer)
    open_engine = _vllm if plan.engine == "vllm" else _transformers
    engine = open_engine(target.folder, tokenizer, plan, eos, min(context, longest_prompt + plan.max_tokens))
    try:
        yield EnginePolicy(engine, tokenizer, plan, target.step, eos, progress)
    finally:
        engine.close()


def _vllm(folder: Path, tokenizer: Any, plan: Plan, eos: tuple[int, ...], longest: int) -> RolloutEngine:
    del tokenizer, eos
    from ascent.rollout.engines.colocated import ColocatedEngine

    platform = engine_kind()
    on_cpu = platform == "cpu"
    return ColocatedEngine(
        EngineSettings(
            str(folder),
            plan.dtype,
            max_model_len=longest,
            max_num_seqs=plan.batch if on_cpu else min(plan.batch, _AT_ONCE),
            kv_cache_bytes=_CPU_KV_CACHE_BYTES if on_cpu else None,
            engine_share=_ENGINE_SHARE,
            enforce_eager=platform != "cuda",
            trust_remote_code=plan.trust_remote_code,
        )
    )


def _transformers(folder: Path, tokenizer: Any, plan: Plan, eos: tuple[int, ...], longest: int) -> RolloutEngine:
    from ascent.rollout.engines.transformers import TransformersEngine
    from ascent.training.sampling_check import load_policy

    model = load_policy(folder, plan.dtype, trust_remote_code=plan.trust_remote_code)
    return TransformersEngine(
        lambda: contextlib.nullcontext(model),
        eos_token_ids=eos,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        max_model_len=longest,
    )


def eos_token_ids(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a completion in the trainer's view: those that the model declares, and the tokenizer's."""
    from transformers import GenerationConfig

    declared: Any = None
    if (folder / "generation_config.json").is_file():
        declared = GenerationConfig.from_pretrained(folder).eos_token_id
    listed = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *listed]))
