"""GRPOConfig: TRL's, every field under its own name and meaning, and ours beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from trl.trainer.grpo_config import GRPOConfig as TRLConfig
from trl.trainer.utils import get_config_model_id

from ascent.training.numerics.precision import set_precision


@dataclass
class GRPOConfig(TRLConfig):
    """`trl.GRPOConfig` with Ascent's settings.

    plain: run TRL's own path unchanged (its generation, its weight sync, rewards after sampling).
    seeded_sampling: give every completion of the vLLM engine its own seed, made of `seed`, the generation and its
        place in the batch, so that a run repeats however completions are batched or spread over processes. Off by
        default: vLLM draws for each such completion apart, which costs up to half of the sampling's speed on CPU.
    max_resample_factor: above 1, groups whose scores are all equal are replaced by groups of further prompts (dynamic
        sampling, DAPO), until so many times the samples of a generation have been drawn. Prompts then come from an
        order of their own. 1.0 (default) trains on what was drawn.
    max_surplus_age: with dynamic sampling, as many more groups are asked for at once as the last generations let
        expect to be without signal; what is too much is trained on later, up to so many optimizer steps after the
        weights that sampled it. 0 (default) asks for no more than is known to be needed.
    oversample_factor: above 1, a generation begins with so many times the groups that it needs, and is closed as soon
        as enough of them are complete. Completions that are not there by then are broken off, and go on in the next
        generation, where their groups are trained on as a whole. Needs vLLM. Prompts come from an order of their own.
    max_straggler_age: with the above, how many generations may be closed without a group. One that is older is waited
        for; none is ever dropped.
    curriculum: with dynamic sampling, tasks whose last groups were all solved, or all unsolved, are drawn seldom.
    npu_optim_level: what is computed in which precision: "O0" all in float32; "O1" float32 weights with autocast; "O2"
        half-precision weights made of float32 masters, with FSDP2. None: as `bf16` and `fp16` say.
    max_bad_steps: a step whose gradient is not finite is skipped and explained; so many in a row end the training.
    logging_nan_inf_filter: TRL's, but off: TRL writes the mean of other steps into its log where a loss isn't finite.
    stream_reward_models: score completions with reward functions that are models as they end ("on"), where nothing else
        needs the device meanwhile ("auto"), or as TRL does, all at the end ("off").

    What a step leaves out, each with the same gradients as TRL's loss of the whole optimizer step as one micro-batch:

    max_tokens_per_batch: train on sub-batches of at most so many tokens, of rows of like length, or of one prompt. A
        row that is longer has a pass of its own. "auto": as many tokens as the longest rows of one of TRL's
        micro-batches have, for which there must be memory anyway. None: TRL's micro-batches.
    shared_prompt: compute a prompt once for its completions of a pass: as one row with a mask ("rows"), by its keys and
        values ("cache"), as a cost model says ("auto"), or not ("off").
    reuse_equal_rows: compute equal rows of a pass once.
    packing: compute log-probabilities and the update of rows without padding ("on"; refused where a model's attention
        would mix sequences), where that is exact ("auto"), or never ("off").
    skip_zero_advantage: leave out rows that can't move the policy: those with advantage 0, where the loss has no other
        term. The advantages of a group whose scores are equal are set to 0, where TRL's are off by rounding.
    skip_old_logps: where each optimizer step trains on whole generations, take the log-probabilities for the correction
        against the sampler from the training forward, instead of from a pass of their own.
    balance_ranks: deal rows out to ranks by cost, so that none waits long for another.
    """

    plain: bool = field(default=False, metadata={"help": "Run TRL's own path unchanged."})
    seeded_sampling: bool = field(
        default=False, metadata={"help": "Give every completion of the vLLM engine a seed of its own."}
    )
    max_resample_factor: float = field(
        default=1.0, metadata={"help": "Replace groups without signal; at most so many times a generation is drawn."}
    )
    max_surplus_age: int = field(
        default=0, metadata={"help": "Groups sampled in advance may be so many optimizer steps old."}
    )
    oversample_factor: float = field(
        default=1.0, metadata={"help": "Sample more groups than needed; what is late goes on in the next generation."}
    )
    max_straggler_age: int = field(
        default=4, metadata={"help": "How many generations may be closed without a group that is not complete."}
    )
    curriculum: bool = field(default=False, metadata={"help": "Seldom draw what is always or never solved."})
    npu_optim_level: str | None = field(default=None, metadata={"help": "Precision: O0, O1 or O2."})
    max_bad_steps: int = field(
        default=3, metadata={"help": "So many steps in a row with gradients that aren't finite end the training."}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Log the mean of other steps where a loss is not finite."}
    )
    stream_reward_models: str = field(
        default="auto", metadata={"help": "Reward models score completions as they end: auto, on or off."}
    )
    max_tokens_per_batch: int | str | None = field(
        default="auto", metadata={"help": "Tokens of a sub-batch: a number, 'auto', or None for TRL's micro-batches."}
    )
    shared_prompt: str = field(
        default="auto", metadata={"help": "Compute a group's prompt once: auto, rows, cache or off."}
    )
    reuse_equal_rows: bool = field(default=True, metadata={"help": "Compute equal rows of a pass once."})
    packing: str = field(default="auto", metadata={"help": "Rows without padding: auto, on or off."})
    skip_zero_advantage: bool = field(default=True, metadata={"help": "Leave out rows that can't move the policy."})
    skip_old_logps: bool = field(
        default=True, metadata={"help": "Take old log-probabilities from the training forward where they are the same."}
    )
    balance_ranks: bool = field(default=True, metadata={"help": "Deal rows out to ranks by cost."})

    def __post_init__(self) -> None:
        """See TRL's. Raises InputError for a precision that can't be had."""
        set_precision(self)
        super().__post_init__()


def own_setting(args: TRLConfig, name: str) -> Any:
    """A field of Ascent's; where `args` are TRL's own, which don't have it, its default."""
    return getattr(args, name, next(each.default for each in fields(GRPOConfig) if each.name == name))


def default_arguments(model: Any) -> GRPOConfig:
    """The arguments of a trainer that is given none: TRL's, in a folder named after the model."""
    name = model if isinstance(model, str) else get_config_model_id(model.config)
    return GRPOConfig(f"{name.split('/')[-1]}-GRPO")
