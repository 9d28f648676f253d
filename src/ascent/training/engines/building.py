"""Builds the engine that a trainer samples with, from what the trainer hands over."""

from __future__ import annotations

from typing import Any

from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig as TRLConfig

from ascent.config.trl_fields import FIELDS
from ascent.errors import InputError
from ascent.rollout.engine import EngineNeeds, EngineSettings, RolloutEngine
from ascent.tables import ENGINES, load

_UNLIMITED = 2**30


def build_engine(name: str, needs: EngineNeeds) -> RolloutEngine:
    """The engine of this name (`ascent.tables.ENGINES`). Raises InputError when the machine or the settings don't allow
    it."""
    engine: RolloutEngine = load(ENGINES, name, "engine").for_trainer(needs)
    return engine


def needs_of(trainer: Any, settings: EngineSettings | None) -> EngineNeeds:
    """What a `trl.GRPOTrainer` has for its engine; without `settings`, those that its `vllm_*` arguments ask for."""
    from ascent.training.engines.settings import from_arguments

    def open_model() -> Any:
        return unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            generation_kwargs=trainer.generation_kwargs,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        )

    return EngineNeeds(
        settings=lambda: settings or from_arguments(trainer.args, trainer.model, trainer.accelerator.num_processes),
        open_model=open_model,
        eos_token_ids=tuple(trainer.eos_token_ids),
        pad_token_id=trainer._tokenizer.pad_token_id,
        bos_token_id=trainer._tokenizer.bos_token_id,
        max_model_len=context(trainer.model),
    )


def standing_servers(args: TRLConfig) -> RolloutEngine:
    """The service that `vllm_server_base_url`, or host and port, name (`vllm_mode="server"`). Raises InputError when
    there is none."""
    from ascent.training.engines.servers import connect

    if args.cast_lm_head_to_fp32:
        raise InputError(
            "cast_lm_head_to_fp32: the standing servers' head is not float32, and on the trainer's side alone it can "
            "widen the difference of the two"
        )
    url = args.vllm_server_base_url
    place = (args.vllm_server_host, args.vllm_server_port)
    if url is None and place != (FIELDS["vllm_server_host"].usual, FIELDS["vllm_server_port"].usual):
        url = f"http://{place[0]}:{place[1]}"
    if url is None:
        raise InputError(
            'vllm_mode="server" needs the servers',
            "Start them with `ascent serve MODEL`, and give vllm_server_base_url, or engine=ascent.connect(NAME). "
            "TRL's own server client is taken with plain=True.",
        )
    return connect(url, rank=args.process_index, processes=args.world_size)


def context(model: Any) -> int:
    """The model's own limit of prompt and completion, in tokens; a very large number for a model that has none."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or _UNLIMITED)
