"""GRPO post-training of language models on Ascend NPUs, CUDA GPUs and CPUs.

The public names below are imported on first use, so that `import ascent` stays instant and works without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ascent.rewards.code import CodeReward
    from ascent.training.arguments import GRPOConfig
    from ascent.training.engines.servers import connect
    from ascent.training.gpro_arguments import GPROConfig
    from ascent.training.gpro_trainer import GPROTrainer
    from ascent.training.trainer import GRPOTrainer

_PUBLIC = {
    "CodeReward": "ascent.rewards.code",
    "GPROConfig": "ascent.training.gpro_arguments",
    "GPROTrainer": "ascent.training.gpro_trainer",
    "GRPOConfig": "ascent.training.arguments",
    "GRPOTrainer": "ascent.training.trainer",
    "connect": "ascent.training.engines.servers",
}

__all__ = ["CodeReward", "GPROConfig", "GPROTrainer", "GRPOConfig", "GRPOTrainer", "__version__", "connect"]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'ascent' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
