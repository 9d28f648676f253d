"""Trains drawn settings on the software NPU and prints each one's peaks: a process for many of them.

Run by `benchmarks/planner.py`: standard input holds lines of JSON (set, seed, count, number), standard output gets one
for each, the peaks in bytes by phase.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from unrecorded import Unrecorded

from ascent.host.process import quieten_transformers, set_up_process
from ascent.memory import Penalty
from planning.drawing import Drawn, draw

_STEPS = 2  # in the second one the optimizer's state is there


def main() -> None:
    """Until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    set_up_process()
    quieten_transformers()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_tokenizer(Path(folder))
        for line in sys.stdin:
            asked = json.loads(line)
            drawn = draw(asked["set"], asked["seed"], asked["count"])[asked["number"]]
            answers.write(json.dumps({**asked, "peaks": peaks_of(drawn, tokenizer, Path(folder))}) + "\n")


def make_tokenizer(folder: Path) -> Any:
    """One token a byte, so that lengths are known."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *pre_tokenizers.ByteLevel.alphabet()]
    bytes_ = Tokenizer(models.BPE(vocab={word: place for place, word in enumerate(words)}, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    del folder
    return PreTrainedTokenizerFast(tokenizer_object=bytes_, pad_token="<pad>", eos_token="<eos>")


def peaks_of(drawn: Drawn, tokenizer: Any, folder: Path) -> dict[str, int]:
    """Train for two steps; the largest peak of each phase, in bytes of the device's allocator, less what it holds of
    trainings before this one."""
    import torch
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM

    from ascent import GPROConfig, GPROTrainer, GRPOConfig, GRPOTrainer

    gc.collect()
    before = torch.accelerator.memory_stats()["allocated_bytes.all.current"]
    trained, batch = drawn.settings.trained, drawn.settings.batch
    config = AutoConfig.for_model(**drawn.config, pad_token_id=0, eos_token_id=1, bos_token_id=None)
    torch.manual_seed(drawn.number)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, trained.dtype), attn_implementation="sdpa")
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    del model
    prompts = [f"{number:04d}".ljust(batch.prompt, "a") for number in range(64)]
    peft = None
    if trained.lora is not None:
        from peft import LoraConfig

        peft = LoraConfig(r=trained.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    seen: dict[str, int] = {}

    class Recorder(Unrecorded):
        def step(self, record: Any) -> None:
            for phase, peak in record.device["phases"].items():
                seen[phase] = max(seen.get(phase, 0), peak["allocated"])

    def reward(completion_ids: Any, **_: Any) -> list[float]:
        return [float(sum(ids) % 17) for ids in completion_ids]

    made, arguments = (GRPOTrainer, GRPOConfig) if trained.penalty is None else (GPROTrainer, GPROConfig)
    trainer = made(
        str(folder / "model"),
        reward,
        arguments(
            str(folder / "out"),
            per_device_train_batch_size=batch.micro_batch,
            gradient_accumulation_steps=batch.accumulation,
            num_generations=batch.group,
            max_completion_length=batch.completion,
            generation_kwargs={"min_new_tokens": batch.completion},
            max_tokens_per_batch="auto" if batch.budget == 0 else batch.budget,
            shared_prompt="auto" if batch.shared_prompt else "off",
            model_init_kwargs={"dtype": trained.dtype, "experts_implementation": "eager"},  # histc of int isn't there
            bf16=trained.autocast,
            optim=trained.optimizer,
            beta=0.04 if trained.reference else 0.0,
            gradient_checkpointing=trained.checkpointing,
            max_steps=_STEPS,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **({} if trained.penalty is None else _of_penalty(trained.penalty)),
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        peft_config=peft,
        recorder=Recorder(),
    )
    trainer.train()
    return {phase: peak - before for phase, peak in seen.items()}


def _of_penalty(penalty: Penalty) -> dict[str, Any]:
    """Arguments. A radius that is looked for is taken however bad it is, and is looked for in each step: also in the
    second one, when the optimizer's state is there."""
    from ascent.algorithms.gradient_penalty import update

    vars(update).update(PROBE_EVERY=1, LEAST_COSINE=-1.0)
    return {
        "gradient_penalty_radius": "auto" if penalty.searches else 1e-3,
        "gradient_penalty_parameters": penalty.moves,
        "gradient_penalty_fraction": penalty.fraction,
    }


if __name__ == "__main__":
    main()
