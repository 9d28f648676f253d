"""Which path a trainer takes: Ascent's, or TRL's own, whose code also checks the settings of both.

TRL's own path is taken where it is asked for (`plain=True`), and for what only it can do. On Ascent's path TRL's
`__init__` runs as it is, with all its checks, except that it builds no engine.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig as TRLConfig

from ascent import devices
from ascent.algorithms.base import Algorithm
from ascent.algorithms.grpo import GRPO
from ascent.compat.trl_on_npu import refuse_on_npu
from ascent.config import trl_fields
from ascent.errors import InputError
from ascent.training.batches.drawing.settings import drawing_asked_for

_ONLY_TRL = ("tools", "rollout_func", "environment_factory")
_LOST = (
    "rewards are computed after sampling instead of beside it, completions and their seeds are not recorded, weights "
    "are not verified, nothing is sampled ahead (staleness), and `ascent train` does not evaluate held-out tasks"
)


def takes_trl_path(
    args: TRLConfig,
    positional: Sequence[Any],
    keywords: Mapping[str, Any],
    *,
    engine: Any,
    staleness: int,
    algorithm: Algorithm | None,
) -> bool:
    """Whether the trainer that is made with these arguments takes TRL's own path.

    `positional` and `keywords` are TRL's. Warns when what only TRL can do leads there, without `plain`. Raises
    InputError when something of Ascent's was asked for as well, which would be lost.
    """
    reasons = _only_trl(args, positional, keywords, samples_with_vllm=args.use_vllm)
    if not reasons and not getattr(args, "plain", False):
        return False
    why = " and ".join(reasons) or "plain=True"
    asked = {
        "engine": engine is not None,
        "staleness": staleness > 0,
        "algorithm": algorithm is not None and not isinstance(algorithm, GRPO),
    }
    lost = [name for name, given in asked.items() if given] + drawing_asked_for(args)
    if lost:
        raise InputError(
            f"{why}: TRL's own path is taken, on which {' and '.join(lost)} would not be used",
            f"Leave out one or the other. Ascent's engine can't do {', '.join(reasons)} in this version."
            if reasons
            else "Leave out one or the other.",
        )
    refuse_on_npu(args)
    if reasons and args.process_index == 0:
        warnings.warn(
            f"{why}: only TRL's own path can do that, so it is taken, as with plain=True. Lost by that: {_LOST}.",
            UserWarning,
            stacklevel=3,
        )
    return True


def check_settings(args: TRLConfig, engine: trl_fields.Engine) -> list[str]:
    """Sentences about settings that mean nothing on Ascent's path when `engine` samples.

    Raises InputError for those that would be lost (`ascent.config.trl_fields`).
    """

    def setting(name: str) -> Any:
        return getattr(args, name, trl_fields.FIELDS[name].usual)

    refused = trl_fields.refusals(setting, engine)
    if refused:
        raise InputError("; ".join(refused), "docs/trl-fields.md says what becomes of each setting.")
    notes = trl_fields.without_meaning(setting, engine)
    if args.fsdp and devices.kind() == "cpu":
        notes.append("trainer.fsdp: accelerate shards on accelerators only; here every process holds the whole model")
    return notes


@contextlib.contextmanager
def without_engine() -> Iterator[None]:
    """While TRL's `GRPOTrainer.__init__` runs: with `use_vllm` it makes its checks, and starts no vLLM."""
    usual = vars(grpo_trainer)["VLLMGeneration"]
    vars(grpo_trainer)["VLLMGeneration"] = _NoEngine
    try:
        yield
    finally:
        vars(grpo_trainer)["VLLMGeneration"] = usual


class _NoEngine(VLLMGeneration):
    """Takes the settings that TRL gives to its engine, and refuses what TRL refuses without starting vLLM."""

    vllm_client: Any

    def _init_vllm(self) -> None:
        if self.mode not in ("server", "colocate"):
            raise ValueError(f"vllm_mode must be either 'server' or 'colocate', got '{self.mode}'.")
        self.vllm_client = self

    def get_server_info(self) -> dict[str, Any]:
        """What TRL asks a server: `ascent serve` always gives log-probabilities after temperature."""
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}


def _only_trl(
    args: TRLConfig, positional: Sequence[Any], keywords: Mapping[str, Any], *, samples_with_vllm: bool
) -> list[str]:
    """What only TRL's own path can do, by the names of its arguments."""
    signature = inspect.signature(grpo_trainer.GRPOTrainer.__init__)
    given = signature.bind_partial(None, *positional, **keywords).arguments
    reasons = [name for name in _ONLY_TRL if given.get(name)]
    if args.use_transformers_continuous_batching and not samples_with_vllm:  # with vLLM it has no meaning in TRL either
        reasons.append("use_transformers_continuous_batching")
    return reasons
