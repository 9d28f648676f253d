"""torch.load refuses `map_location="cpu:0"`.

In a run of several CPU processes accelerate names their device `cpu:0`, and transformers loads the optimizer state of a
checkpoint with that as `map_location`: resuming several CPU processes fails with "don't know how to restore data
location". Seen with torch 2.13, accelerate 1.15, transformers 5.17.
"""

from __future__ import annotations

from typing import Any

_registered = False


def accept_cpu_index() -> None:
    """Let torch.load take `cpu:N` as the CPU. Safe to call again."""
    global _registered
    if _registered:
        return
    import torch

    def tag(storage: Any) -> str | None:
        return None  # how storages are saved stays as it is

    def restore(storage: Any, location: str) -> Any:
        return storage if location.startswith("cpu:") else None

    torch.serialization.register_package(9, tag, restore)
    _registered = True
