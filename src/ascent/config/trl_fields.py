"""What becomes of each field of `GRPOConfig` on Ascent's path: a table, which the checks and the documentation read.

Fields of TRL and of transformers that TRL's own code reads are as they always are (`TRL`). The others concern sampling,
and there Ascent's engines take their place: `ENGINE` is taken, `REFUSED` is refused with its reason where it would be
lost, `PATH` leads to TRL's own path, `NOTHING` has no meaning here. `STEP` is Ascent's own, about the update. With
`plain=True` everything is TRL's.

Nothing heavy is imported: a configuration is checked before torch is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Becomes = Literal["TRL", "ENGINE", "STEP", "REFUSED", "PATH", "NOTHING"]
Engine = Literal["transformers", "colocate", "server"]  # which one samples; the last two are vLLM
VLLM: tuple[Engine, ...] = ("colocate", "server")
ALL: tuple[Engine, ...] = ("transformers", "colocate", "server")


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `how` says how it is taken, why it is refused, or why it means nothing; this holds for `engines`, and
    with the others the field has no meaning in TRL either. `usual` is the value that asks for nothing."""

    name: str
    becomes: Becomes
    how: str = ""
    engines: tuple[Engine, ...] = ALL
    usual: Any = None


_SAMPLING = "in the engine's sampling settings"
_NARROWS = (
    f"{_SAMPLING}; with vLLM and `vllm_importance_sampling_correction` refused where it narrows the policy: "
    "[training](training.md#sampler-and-trainer)"
)
_SERVER_ONLY = "belongs to TRL's own client; Ascent's is told by the service what it needs"
_OWN = (
    Field("num_generations", "ENGINE", "completions of each prompt"),
    Field("num_generations_eval", "ENGINE", "completions of each prompt in evaluations"),
    Field("max_completion_length", "ENGINE", "`None`: as many tokens as the engine's context leaves room for"),
    Field("temperature", "ENGINE", _SAMPLING, usual=1.0),
    Field("top_p", "ENGINE", _NARROWS, usual=1.0),
    Field("top_k", "ENGINE", _NARROWS, usual=0),
    Field("min_p", "ENGINE", _NARROWS),
    Field("repetition_penalty", "ENGINE", _NARROWS, usual=1.0),
    Field(
        "generation_kwargs",
        "ENGINE",
        "for `SamplingParams` or `GenerationConfig`; a key that a field sets as well takes its place. Keys that "
        "change what the engine returns are refused: see below",
    ),
    Field("cache_implementation", "ENGINE", "in `GenerationConfig`", ("transformers",)),
    Field("ds3_gather_for_generation", "ENGINE", "the model is opened for sampling so", ("transformers",), usual=True),
    Field("use_vllm", "ENGINE", "vLLM samples; otherwise transformers' `generate`", usual=False),
    Field("vllm_mode", "ENGINE", "`colocate`: in this process; `server`: a service of `ascent serve`", VLLM),
    Field("vllm_server_base_url", "ENGINE", "the service's servers, with commas between", ("server",)),
    Field("vllm_server_host", "ENGINE", "with the port, where there is no URL", ("server",), usual="0.0.0.0"),
    Field("vllm_server_port", "ENGINE", "with the host, where there is no URL", ("server",), usual=8000),
    Field("vllm_server_timeout", "NOTHING", _SERVER_ONLY, ("server",), usual=240.0),
    Field("vllm_group_port", "NOTHING", _SERVER_ONLY, ("server",), usual=51216),
    Field("vllm_gpu_memory_utilization", "ENGINE", "the engine's share of the device", ("colocate",), usual=0.3),
    Field("vllm_max_model_length", "ENGINE", "the engine's context", ("colocate",)),
    Field("vllm_structured_outputs_regex", "ENGINE", _SAMPLING, VLLM),
    Field(
        "vllm_model_impl",
        "REFUSED",
        "weights are checked against vLLM's own models; with others, take plain=True",
        ("colocate",),
        usual="vllm",
    ),
    Field(
        "vllm_enable_sleep_mode", "ENGINE", "the engine gives its memory back between generations", ("colocate",), False
    ),
    Field(
        "vllm_tensor_parallel_size",
        "REFUSED",
        "an engine in the training process has one device; start a service with `ascent serve MODEL -tp N`, or take "
        "plain=True",
        ("colocate",),
        usual=1,
    ),
    Field("use_transformers_continuous_batching", "PATH", engines=("transformers",), usual=False),
    Field("use_transformers_paged", "PATH", "the old name", ("transformers",), usual=False),
    Field("transformers_continuous_batching_config", "PATH", "with the above", ("transformers",)),
    Field("max_tool_calling_iterations", "PATH", "with `tools` or `environment_factory`"),
    Field("plain", "PATH", "Ascent's own: asks for it", usual=False),
    Field("seeded_sampling", "ENGINE", "Ascent's own: a seed for every completion", VLLM, usual=True),
    Field("max_resample_factor", "ENGINE", "Ascent's own: groups without signal are replaced", usual=1.0),
    Field(
        "max_surplus_age", "ENGINE", "Ascent's own, with the above: how old groups sampled in advance may be", usual=0
    ),
    Field("oversample_factor", "ENGINE", "Ascent's own: generations are closed without their stragglers", usual=1.0),
    Field("max_straggler_age", "ENGINE", "Ascent's own, with the above: how often a group may be late", usual=4),
    Field(
        "curriculum", "ENGINE", "Ascent's own, with the above: seldom draws what is always or never solved", usual=False
    ),
)
_STEP = (
    Field("max_tokens_per_batch", "STEP", "sub-batches of at most so many tokens", usual="auto"),
    Field("shared_prompt", "STEP", "a prompt is computed once for its completions", usual="auto"),
    Field("reuse_equal_rows", "STEP", "equal rows are computed once", usual=True),
    Field("skip_zero_advantage", "STEP", "rows that can't move the policy are left out", usual=True),
    Field("skip_old_logps", "STEP", "old log-probabilities come from the training forward where they can", usual=True),
    Field("balance_ranks", "STEP", "rows are dealt out to ranks by cost", usual=True),
    Field("packing", "STEP", "rows without padding: [training](training.md#without-padding)", usual="auto"),
    Field("max_bad_steps", "STEP", "steps whose gradient isn't finite: [numbers](numerics.md)", usual=3),
    Field("npu_optim_level", "STEP", "precision by its levels: [numbers](numerics.md#precision)"),
    Field(
        "stream_reward_models",
        "STEP",
        "reward models score completions as they end: [rewards](rewards.md#rewards-that-are-models)",
        usual="auto",
    ),
)
# With these an optimizer step computes all that TRL's does, to compare with.
NOTHING_SAVED: Mapping[str, Any] = {
    "max_tokens_per_batch": None,
    "shared_prompt": "off",
    "reuse_equal_rows": False,
    "packing": "off",
    "skip_zero_advantage": False,
    "skip_old_logps": False,
    "balance_ranks": False,
}
# Names only, by what they are about: TRL's and transformers' code reads them, whichever engine samples.
_OF_TRL = {
    "model": "model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout cast_lm_head_to_fp32 use_cache "
    "neftune_noise_alpha",
    "prompts and batches": "remove_unused_columns shuffle_dataset pad_to_multiple_of chat_template_kwargs "
    "generation_batch_size steps_per_generation num_iterations per_device_train_batch_size "
    "per_device_eval_batch_size gradient_accumulation_steps auto_find_batch_size train_sampling_strategy "
    "length_column_name label_names dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
    "dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order "
    "accelerator_config ignore_data_skip data_seed",
    "loss": "beta epsilon delta epsilon_high sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos "
    "vespo_k_neg vespo_lambda_neg importance_sampling_level reward_weights multi_objective_aggregation scale_rewards "
    "loss_type mask_truncated_completions sync_ref_model ref_model_mixup_alpha ref_model_sync_steps "
    "top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta "
    "entropy_target off_policy_mask_threshold use_bias_correction_kl vllm_importance_sampling_correction "
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min "
    "vllm_importance_sampling_cap average_tokens_across_devices label_smoothing_factor",
    "optimizer": "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args "
    "weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules max_grad_norm num_train_epochs max_steps "
    "seed full_determinism",
    "precision and memory": "bf16 fp16 bf16_full_eval fp16_full_eval tf32 gradient_checkpointing "
    "gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode use_liger_kernel "
    "liger_kernel_config torch_empty_cache_steps use_cpu skip_memory_metrics",
    "processes": "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend "
    "ddp_timeout fsdp fsdp_config deepspeed parallelism_config local_rank log_on_each_node save_on_each_node",
    "logging": "output_dir logging_dir logging_strategy logging_steps logging_first_step logging_nan_inf_filter "
    "include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name project "
    "trackio_space_id trackio_bucket_id trackio_static_space_id log_completions log_multimodal "
    "num_completions_to_print log_unique_prompts log_completions_hub_repo debug",
    "evaluation": "eval_strategy eval_steps eval_delay prediction_loss_only eval_on_start eval_do_concat_batches "
    "eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics load_best_model_at_end "
    "metric_for_best_model greater_is_better do_train do_eval do_predict",
    "checkpoints and the hub": "save_strategy save_steps save_total_limit save_only_model enable_jit_checkpoint "
    "restore_callback_states_from_checkpoint resume_from_checkpoint push_to_hub hub_token hub_private_repo "
    "hub_model_id hub_strategy hub_always_push hub_revision",
}
_AS_ALWAYS = (Field(name, "TRL", topic) for topic, names in _OF_TRL.items() for name in names.split())
FIELDS: Mapping[str, Field] = {field.name: field for field in (*_OWN, *_STEP, *_AS_ALWAYS)}
# Keys of `generation_kwargs` that an engine can't be given -> why.
REFUSED_KEYS: Mapping[Engine, Mapping[str, str]] = {
    "transformers": {
        "num_return_sequences": "each prompt of the batch gets one completion; num_generations says how many in all",
        "return_dict_in_generate": "the engine takes token ids",
    },
    "colocate": (
        _vllm := {
            "n": "num_generations says how many completions a prompt gets",
            "seed": "all completions of a prompt would be the same; seeds are made of `seed`, one for each completion",
            "logprobs": "training needs those of the sampled tokens",
            "flat_logprobs": "training needs those of the sampled tokens",
            "output_kind": "the engine returns a completion when it has ended",
            "detokenize": "texts are made by the trainer's tokenizer",
        }
    ),
    "server": _vllm,
}


def refusals(setting: Callable[[str], Any], engine: Engine) -> list[str]:
    """A sentence for each setting that can't be kept when `engine` samples. `setting(name)` is its value, and the
    field's `usual` value where it isn't given."""
    found = [
        f"{field.name}={setting(field.name)!r}: {field.how}"
        for field in FIELDS.values()
        if field.becomes == "REFUSED" and engine in field.engines and setting(field.name) != field.usual
    ]
    keys: Any = setting("generation_kwargs")
    keys = keys if isinstance(keys, dict) else {}
    refused = REFUSED_KEYS[engine]
    return found + [f"generation_kwargs[{key!r}]: {refused[key]}" for key in keys if key in refused]


def without_meaning(setting: Callable[[str], Any], engine: Engine) -> list[str]:
    """A sentence for each setting that asks for something and has no meaning when `engine` samples, but has in TRL."""
    return [
        f"{field.name}={setting(field.name)!r} means nothing here: it {field.how}"
        for field in FIELDS.values()
        if field.becomes == "NOTHING" and engine in field.engines and setting(field.name) != field.usual
    ]


_WORDS = {
    "ENGINE": "taken",
    "STEP": "taken",
    "REFUSED": "refused, unless {usual}",
    "PATH": "TRL's own path",
    "NOTHING": "no meaning",
}


def page() -> str:
    """docs/trl-fields.md: `python -m ascent.config.trl_fields > docs/trl-fields.md`."""
    lines = [
        "<!-- Made from src/ascent/config/trl_fields.py by `python -m ascent.config.trl_fields`; don't edit. -->",
        "",
        "# TRL's settings",
        "",
        "`from ascent import GRPOConfig, GRPOTrainer` takes the place of the same import from `trl`. What becomes of",
        "each field of `GRPOConfig`, and of `TrainingArguments` beneath it, stands here; with `plain=True` everything",
        "is TRL's. In the configuration of `ascent train` the fields stand under `trainer`; see",
        "[configuration](configuration.md).",
        "",
        "TRL's `__init__` runs with all its checks, so what TRL refuses is refused with TRL's own words.",
        "",
        "## Fields that concern sampling",
        "",
        "With engines that are not named in the second column a field has no meaning, in TRL neither.",
        "",
        "| field | engines | what becomes of it | |",
        "|---|---|---|---|",
    ]
    for field in _OWN:
        engines = "all" if field.engines == ALL else ", ".join(field.engines)
        word = _WORDS[field.becomes].format(usual=f"`{field.usual!r}`")
        lines.append(f"| `{field.name}` | {engines} | {word} | {field.how} |")
    lines += ["", "Keys of `generation_kwargs` that are refused:", "", "| engines | key | |", "|---|---|---|"]
    for engine, keys in (("transformers", REFUSED_KEYS["transformers"]), ("colocate, server", _vllm)):
        lines += [f"| {engine} | `{key}` | {why} |" for key, why in keys.items()]
    lines += [
        "",
        "## TRL's own path",
        "",
        "The trainer's arguments `tools`, `environment_factory` and `rollout_func`, and transformers' continuous",
        "batching, are things that only TRL's own path can do. It is taken by itself then, as with `plain=True`, and a",
        "warning says what is lost: rewards are computed after sampling instead of beside it, completions and their",
        "seeds are not recorded, weights are not verified, nothing is sampled ahead, and `ascent train` does not",
        "evaluate held-out tasks.",
        "Together with `engine`, `staleness` or another `algorithm` they are refused.",
        "",
        "Images in prompts are refused when they are to be sampled; they take `plain=True`.",
        "",
        "## Ascent's own, about how a step is computed",
        "",
        "With TRL's own path they have no meaning.",
        "",
        "| field | default | |",
        "|---|---|---|",
        *(f"| `{field.name}` | `{field.usual!r}` | {field.how} |" for field in _STEP),
        "",
        "## Fields that TRL's own code reads",
        "",
        "As always, whichever engine samples.",
        "",
        "| about | fields |",
        "|---|---|",
    ]
    lines += [f"| {topic} | {' '.join(f'`{name}`' for name in names.split())} |" for topic, names in _OF_TRL.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
