"""In a process of its own, one repetition: `python -m ascent.training.replay.child STEP MODEL RANK DTYPE OUT`.

STEP is the folder that the run kept, MODEL its weights, RANK the process whose rows are taken, DTYPE what is computed
in ("kept": as the run did). The device is the one that this process trains on. What a repetition is made with is TRL's
trainer and this package's, as in the run, but for the engine: nothing is sampled.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascent.errors import InputError

# Settings of the run that its loss, and the way in which log-probabilities are computed, depend on. No others are
# taken: a kept step may come from somebody else.
_OF_LOSS = (
    "epsilon", "epsilon_high", "delta", "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos",
    "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "importance_sampling_level", "loss_type",
    "top_entropy_quantile", "entropy_coef", "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max",
    "entropy_coef_delta", "entropy_target", "off_policy_mask_threshold", "use_bias_correction_kl",
    "vllm_importance_sampling_mode", "num_generations", "max_completion_length", "temperature", "num_iterations",
    "cast_lm_head_to_fp32", "router_aux_loss_coef", "disable_dropout", "shared_prompt", "reuse_equal_rows", "packing",
    "seed",
)  # fmt: skip


def main(step: Path, model: Path, rank: int, dtype: str, out: Path) -> None:
    """Repeat, and write what it gave."""
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process()
    quieten_transformers()
    import torch

    from ascent import devices
    from ascent.training.batches.kept_passes import repeat
    from ascent.training.numerics.finding import Finding, gravest
    from ascent.training.numerics.kept_step import KeptStep, load_passes, read_about
    from ascent.training.numerics.tracing import Trace
    from ascent.training.replay import repeated

    kept = KeptStep(step, read_about(step))
    trainer = trainer_of(kept.about, model, dtype, out.parent / f"{out.stem}-output")
    device = trainer.accelerator.device
    passes = load_passes(step / f"rank{rank}.safetensors", device)
    logps: list[torch.Tensor] = []
    _listen(trainer, logps)
    prepared = trainer.accelerator.prepare_model(trainer.model)
    losses: list[float] = []
    with Trace(trainer.model) as trace:
        for each in passes:
            _for_one_process(each.rows, kept.about["processes"])
            trace.begin(each.rows)
            loss = repeat(trainer, prepared, each)
            trace.end(loss)
            losses.append(float(loss))
    scale = 1.0 if trainer.accelerator.scaler is None else trainer.accelerator.scaler.get_scale()
    named = trainer.model.named_parameters()
    gradients = {name: parameter.grad / scale for name, parameter in named if parameter.grad is not None}
    for name, gradient in gradients.items():
        trace.look("sum", name, gradient)
    repeated.save(
        out,
        device=f"{device.type} ({devices.name()})",
        computing=computing(trainer),
        losses=losses,
        finding=gravest(trace.found) if trace.found else Finding("nothing"),
        logps=logps,
        gradients=gradients,
    )


def trainer_of(about: Mapping[str, Any], model: Path, dtype: str, output: Path) -> Any:
    """A trainer with the loss of the run: `about` is step.json's content."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    from ascent import devices
    from ascent.tables import ALGORITHMS, load
    from ascent.training.arguments import GRPOConfig
    from ascent.training.batches.kept_passes import ENTROPY_BONUS
    from ascent.training.trainer import GRPOTrainer

    settings = about["settings"]
    mixed = about["mixed_precision"] if dtype == "kept" else {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, "no")
    args = GRPOConfig(
        **{name: settings[name] for name in _OF_LOSS if name in settings},
        output_dir=str(output),
        report_to="none",
        save_strategy="no",
        bf16=mixed == "bf16",
        fp16=mixed == "fp16",
        use_cpu=devices.kind() == "cpu",
        per_device_train_batch_size=settings["num_generations"],
        gradient_checkpointing=False,
    )
    init = settings.get("model_init_kwargs") or {}
    trainer = GRPOTrainer(
        _load(model, about["dtype"] if dtype == "kept" else "float32", init),
        lambda completions, **_: [0.0 for _ in completions],
        args,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * args.per_device_train_batch_size),
        processing_class=AutoTokenizer.from_pretrained(model),
        engine="transformers",
        algorithm=load(ALGORITHMS, about["algorithm"])() if about["algorithm"] in ALGORITHMS else None,
    )
    # what the loss reads of the run
    trainer.beta = settings["beta"]
    trainer.use_vllm = bool(settings["use_vllm"])
    trainer.vllm_importance_sampling_correction = settings["vllm_importance_sampling_correction"]
    trainer.current_gradient_accumulation_steps = about["micro_batches"]
    trainer.args.steps_per_generation = settings["steps_per_generation"]
    kept = about.get("entropy_bonus", {})
    vars(trainer).update({name: float(kept[name]) for name in ENTROPY_BONUS if name in kept})
    if trainer.accelerator.scaler is not None and about["loss_scale"] is not None:
        scaler = trainer.accelerator.scaler
        scaler.load_state_dict({**scaler.state_dict(), "scale": about["loss_scale"]})
    return trainer


def computing(trainer: Any) -> str:
    """What the products were computed in."""
    from ascent.rollout.weights.parameters import computing_dtype

    return computing_dtype(trainer.model, trainer.accelerator)


def _load(folder: Path, dtype: str, init: Mapping[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from ascent.models.adapter_base import find_base
    from ascent.models.adapters import is_adapter, read_adapter
    from ascent.models.folder import model_folder

    attention = init.get("attn_implementation")
    if attention is not None and "/" in attention:
        raise InputError(f"the run's attention is a kernel of the hub ({attention}), whose code isn't run here")
    more = {} if attention is None else {"attn_implementation": attention}
    if not is_adapter(folder):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **more)
    from peft import PeftModel

    base = find_base(read_adapter(folder), model_folder)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype), **more)
    return PeftModel.from_pretrained(model, folder, is_trainable=True)


def _for_one_process(rows: Any, processes: int) -> None:
    """TRL divides a generation's tokens by the number of processes, of which there is one here."""
    if (tokens := rows.get("num_items_in_batch")) is not None:
        rows["num_items_in_batch"] = tokens / processes


def _listen(trainer: Any, logps: list[Any]) -> None:
    """The log-probabilities of each training pass, of the tokens in the loss, go into `logps`."""
    usual = trainer._get_per_token_logps_and_entropies

    def heard(*args: Any, **keywords: Any) -> Any:
        from ascent.training.batches.rows import loss_mask

        found = usual(*args, **keywords)
        logps.append(found[0].detach()[loss_mask(trainer._in_loss).bool()])
        return found

    trainer._get_per_token_logps_and_entropies = heard


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
