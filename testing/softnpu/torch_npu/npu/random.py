"""The device generators' seeds and states.

Unless SOFTNPU_OWN_RNG=1 each is the host's generator: a seed or state set here is the host's too.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_npu.npu import current_device, default_generators, device_count
from torch_npu.npu.utils import _get_device_index

Device = int | str | torch.device


def get_rng_state(device: Device = "npu") -> torch.Tensor:
    """The state of a device's generator, a byte tensor on the host."""
    return default_generators[_index(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all visible devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Device = "npu") -> None:
    """Set the state of a device's generator."""
    default_generators[_index(device)].set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of the devices' generators, in their order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    if device_count():
        default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all visible devices' generators."""
    for index in range(device_count()):
        default_generators[index].manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator at random."""
    if device_count():
        default_generators[current_device()].seed()


def seed_all() -> None:
    """Seed all visible devices' generators with one random number."""
    if device_count():
        manual_seed_all(default_generators[0].seed())


def initial_seed() -> int:
    """The current device's seed."""
    return default_generators[current_device()].initial_seed()


def _index(device: Device) -> int:
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise RuntimeError(f"Invalid device ID: npu:{index}, of {device_count()} devices")
    return index
