"""The interface over devices, on whatever device the tests run (tests/npu runs these on a software NPU)."""

from __future__ import annotations

import contextlib
import os
import random

import pytest

from ascent import devices

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


def draws() -> list[float]:
    """One number of every generator that training draws from."""
    import numpy as np
    import torch

    return [
        random.random(),
        float(np.random.random()),
        float(torch.rand(())),
        float(torch.rand((), device=devices.current())),
    ]


def test_random_states_are_as_they_were() -> None:
    with devices.unchanged_random_state():
        inside = draws()
        again = draws()
    assert inside != again
    assert draws() == inside
    with contextlib.suppress(RuntimeError), devices.unchanged_random_state():
        draws()
        raise RuntimeError
    assert draws() == again


def test_memory_is_counted() -> None:
    import torch

    size = 64 * 2**20
    before = devices.use()
    tensor = torch.ones(size, dtype=torch.uint8, device=devices.current())
    devices.synchronize()
    during = devices.use()
    assert during.used_bytes - before.used_bytes >= size * 0.9
    assert during.peak_bytes >= size
    assert during.total_bytes > during.used_bytes
    del tensor
    devices.empty_cache()
    devices.reset_peak()
    after = devices.use()
    assert after.used_bytes <= during.used_bytes - size * 0.9
    if devices.kind() != "cpu":
        assert after.peak_bytes < during.peak_bytes


def test_the_current_device_has_an_index_and_a_name() -> None:
    device = devices.current()
    assert device.type == devices.kind()
    assert device.index == (None if device.type == "cpu" else 0)
    assert devices.name()
    assert devices.count() >= 1


def test_training_on_cpu_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert devices.kind() == "cpu"
    assert devices.visible() == ""
    assert not devices.supports_bf16()


def test_a_limit_of_visible_devices_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "kind", lambda: "npu")
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    assert devices.visible() == ""
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2,3")
    assert devices.visible() == "ASCEND_RT_VISIBLE_DEVICES=2,3"


def test_accelerate_agrees() -> None:
    from accelerate import PartialState

    assert PartialState().device.type == devices.kind()
    assert os.environ.get("ACCELERATE_USE_CPU") or devices.kind() != "cpu"
