"""vLLM inside the trainer's process, whatever the device that trains: the engine has the trained weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.small_trainer import Memory, make_trainer

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]  # on CPU test_train_command.py covers it, with two processes


def test_the_engine_samples_with_the_trained_weights(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    from ascent import devices
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.platform import engine_kind

    dtype = "float32" if engine_kind() == "cpu" else "bfloat16"
    settings = EngineSettings(str(tiny_policy()), dtype, max_model_len=64, kv_cache_bytes=16 * 2**20)
    memory = Memory()
    trainer = make_trainer(tiny_policy(), tmp_path, memory, engine=settings)
    try:
        trainer.train()
        assert trainer.accelerator.device.type == devices.kind()
        assert next(trainer.model.parameters()).device == devices.current()
        assert any(step.metrics["grad_norm"] for step in memory.steps), "the weights never moved"
        for step in memory.steps:
            difference = step.metrics["sampling/sampling_logp_difference/mean"]
            assert difference is not None
            assert difference <= (1e-4 if dtype == "float32" else 0.02)
        assert [record.weight_version for _, records, _ in memory.generations for record in records[:1]] == [0, 1, 2, 3]
    finally:
        trainer.engine.close()


def test_adapters_that_come_apart_in_training_are_refused_and_would_be_seen(
    tiny_policy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the embedding of a tied model; let through, the canary of the update after the first step ends the run."""
    from peft import LoraConfig

    from ascent.errors import InputError
    from ascent.rollout.engine import EngineSettings, WeightMismatchError
    from ascent.training.engines import sampling

    settings = EngineSettings(str(tiny_policy()), "float32", max_model_len=64, kv_cache_bytes=16 * 2**20)
    lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "embed_tokens"])
    with pytest.raises(InputError, match="adapters on embed_tokens"):
        make_trainer(tiny_policy(), tmp_path, engine=settings, peft_config=lora)
    monkeypatch.setattr(sampling, "refuse_unmergeable", lambda model: None)
    memory = Memory()
    trainer = make_trainer(tiny_policy(), tmp_path, memory, engine=settings, peft_config=lora, learning_rate=0.1)
    try:
        with pytest.raises(WeightMismatchError, match="engine computes otherwise than the trainer"):
            trainer.train()
        assert 1 <= trainer.state.global_step < 4, "at the first update that moved the embedding"
    finally:
        trainer.engine.close()


@pytest.mark.parametrize("kind", ["dora", "tied-alike"])
def test_adapters_that_are_let_through_are_sampled_as_they_are_trained(
    tiny_policy: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    from peft import LoraConfig

    from ascent.rollout.engine import EngineSettings

    chosen: dict[str, Any] = {
        "dora": {"target_modules": ["q_proj", "down_proj"], "use_dora": True},
        "tied-alike": {"modules_to_save": ["embed_tokens"], "target_modules": ["q_proj"], "ensure_weight_tying": True},
    }[kind]
    settings = EngineSettings(str(tiny_policy()), "float32", max_model_len=64, kv_cache_bytes=16 * 2**20)
    memory = Memory()
    lora = LoraConfig(task_type="CAUSAL_LM", r=8, **chosen)
    trainer = make_trainer(tiny_policy(), tmp_path, memory, engine=settings, peft_config=lora, learning_rate=0.05)
    try:
        trainer.train()
        assert any(step.metrics["grad_norm"] for step in memory.steps)
        for step in memory.steps:
            assert (step.metrics["sampling/sampling_logp_difference/max"] or 0.0) <= 1e-3
    finally:
        trainer.engine.close()


def test_trl_s_generation_settings_reach_vllm(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """A regular expression, strings that end a completion, keys of generation_kwargs that fields set as well, and no
    longest completion: what comes back obeys them."""
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine
    from ascent.types import RolloutRequest

    engine = ColocatedEngine(EngineSettings(str(tiny_policy()), "float32", 64, kv_cache_bytes=16 * 2**20))
    try:
        trainer = make_trainer(tiny_policy(), tmp_path, engine=engine)
        decode = trainer.processing_class.decode

        def sample(**settings: object) -> list[str]:
            for name, value in settings.items():
                setattr(trainer.args, name, value)
            engine.submit([RolloutRequest("g", (40, 41, 42), 4, trainer.sampling(), seed=5)])
            found = []
            while engine.unfinished():
                found += engine.poll()
            for completion in found:
                assert len(completion.logps) == len(completion.token_ids) > 0
            return [decode(completion.token_ids) for completion in found]

        assert all(re.fullmatch("(ab)+(<eos>)?", text + "b" * text.endswith("a")) for text in sample(
            vllm_structured_outputs_regex="(ab)+"
        ))  # fmt: skip
        texts = sample(
            vllm_structured_outputs_regex=None,
            generation_kwargs={"structured_outputs": {"regex": "a*b"}, "max_tokens": 30, "stop": ["aa", "b"]},
        )
        assert {text[-2:] if text.endswith("aa") else text[-1] for text in texts} <= {"aa", "b"}
        assert all(len(text) <= 2 for text in texts), "it ended with the first of the strings"
        trainer.max_completion_length = None
        texts = sample(generation_kwargs={"ignore_eos": True, "logit_bias": {70: 100.0}})
        assert [len(trainer.processing_class(text)["input_ids"]) for text in texts] == [61] * 4, "to the context's end"
    finally:
        engine.close()


def test_generations_that_are_closed_early_go_on_from_where_they_were(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    """With vLLM itself, and its log-probabilities: of each token those of the weights that sampled it. A run repeats,
    and goes on from a checkpoint, stragglers and all."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from ascent.rollout.engine import EngineSettings

    settings = EngineSettings(str(tiny_policy()), "float32", 64, max_num_seqs=24, kv_cache_bytes=16 * 2**20)
    given = {
        "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "max_completion_length": 40,
        "seeded_sampling": True, "oversample_factor": 1.5, "max_straggler_age": 2, "max_steps": 6, "save_steps": 1,
        "save_strategy": "steps", "generation_kwargs": {"logit_bias": {1: 3.0}},
    }  # fmt: skip

    def run(folder: str, **more: Any) -> Memory:
        memory = Memory()
        trainer = make_trainer(tiny_policy(), tmp_path / folder, memory, engine=settings, **given)
        try:
            trainer.train(**more)
        finally:
            trainer.engine.close()
        return memory

    def told(memory: Memory) -> list[Any]:
        return [
            (
                each.generation,
                each.group_id,
                each.index,
                each.completion_ids.tolist(),
                each.weight_spans,
                each.advantage,
            )
            for _, records, _ in memory.generations
            for each in records
        ]

    whole = run("whole")
    parted = [each for _, records, _ in whole.generations for each in records if each.weight_spans]
    assert parted
    for step in whole.steps[1:]:
        assert (step.metrics["sampling/sampling_logp_difference/max"] or 0.0) < 5.0
    assert told(run("again")) == told(whole)
    at = next(step.step for step in whole.steps[2:] if step.metrics["sampling/stragglers"])
    resumed = run("whole", resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
    assert told(resumed) == [each for each in told(whole) if each[0] >= at]
    models = {
        version: AutoModelForCausalLM.from_pretrained(
            tiny_policy() if version == 0 else tmp_path / "again" / f"checkpoint-{version}", dtype=torch.float32
        ).eval()
        for version in range(6)
    }
    for each in parted:
        ids = torch.tensor([[*each.prompt_ids, *each.completion_ids.tolist()]])
        spans = each.weight_spans or ()
        for (start, version), end in zip(
            spans, [start for start, _ in spans[1:]] + [len(each.completion_ids)], strict=True
        ):
            with torch.no_grad():
                logits = models[version](ids).logits[0, len(each.prompt_ids) - 1 : -1].float()
            logits[:, 1] += 3.0
            logps = logits.log_softmax(-1).gather(1, ids[0, len(each.prompt_ids) :, None])[:, 0].numpy()
            own = slice(start, end)
            assert np.abs(logps[own] - each.logps[own]).max() < 1e-3
