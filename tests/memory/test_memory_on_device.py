"""The trainer's memory on a device whose allocator counts: peaks by phase, what is given back, and the cap."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.softnpu_env import run_softnpu

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

# Arguments: the policy's folder, a folder for output. Prints what three trainings with other settings of `offload` did.
OFFLOADED = """
import gc, json, sys
from pathlib import Path
import torch
from ascent import devices
from tests.small_trainer import Memory, make_trainer

def train(offload):
    gc.collect()  # what is still there of the training before
    before = torch.accelerator.memory_stats()["allocated_bytes.all.current"]
    memory = Memory()
    trainer = make_trainer(
        Path(sys.argv[1]), Path(sys.argv[2]) / offload, memory, offload=offload, seed=5, max_steps=3,
        steps_per_generation=1, max_tokens_per_batch=None, skip_zero_advantage=False,
    )
    held = []
    inner = trainer._sampler.sample
    def sample(*args):
        state = [v for s in trainer.optimizer.optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
        held.append([
            sum(v.nbytes for v in state if v.device.type == "npu" and v.dim()),
            sum(p.grad.nbytes for p in trainer.model.parameters() if p.grad is not None),
        ])
        return inner(*args)
    trainer._sampler.sample = sample
    trainer.train()
    state = trainer.optimizer.optimizer.state.values()
    return {
        "held": held,
        "back": all(v.device.type == "npu" for s in state for v in s.values() if torch.is_tensor(v) and v.dim()),
        "weights": [float(p.detach().double().abs().sum()) for p in trainer.model.parameters()],
        "losses": [step.metrics["loss"] for step in memory.steps],
        "seconds": [step.metrics.get("memory/offload_seconds") for step in memory.steps],
        "bytes": [step.metrics.get("memory/offload_bytes") for step in memory.steps],
        "phases": [step.device["phases"] for step in memory.steps],
        "before": before,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }

print(json.dumps({name: train(name) for name in ("none", "optimizer", "all")}))
"""

CAPPED = """
import sys
import torch
from ascent import devices
from ascent.errors import InputError
devices.limit_allocator(2**20)
kept = torch.zeros(2**17, device="npu")  # half of it
try:
    torch.zeros(2**18, device="npu")
    print("too much was given")
except torch.OutOfMemoryError as error:
    print("refused:", devices.says_out_of_memory(str(error)))
try:
    devices.limit_allocator(2**50)
except InputError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def offloaded(
    tiny_policy: Callable[..., Path], softnpu: Callable[..., dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    environment = {**softnpu(), "CI": "1", "HF_HUB_OFFLINE": "1"}
    out = run_softnpu(OFFLOADED, tiny_policy(), tmp_path_factory.mktemp("offload"), environment=environment)
    answer = json.loads(out.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def test_training_is_the_same_whatever_lies_on_the_host(offloaded: dict[str, Any]) -> None:
    for other in ("optimizer", "all"):
        assert offloaded[other]["weights"] == offloaded["none"]["weights"]
        assert offloaded[other]["losses"] == offloaded["none"]["losses"]
        assert offloaded[other]["back"]
    assert len(set(offloaded["none"]["losses"])) > 1  # something happened that could differ


def test_what_is_given_back_while_sampling(offloaded: dict[str, Any]) -> None:
    parameters = offloaded["none"]["parameters"]
    states, gradients = 2 * 4 * parameters, 4 * parameters
    # six generations of three steps: there is no state in the first step, and gradients are there in every second one
    held = {name: [tuple(each) for each in offloaded[name]["held"]] for name in offloaded}
    assert held["none"][2:] == [(states, 0), (states, gradients)] * 2
    assert held["optimizer"][2:] == [(0, 0), (0, gradients)] * 2
    assert held["all"][2:] == [(0, 0), (0, 0)] * 2
    peaks = {name: found["phases"][2]["generate"]["allocated"] - found["before"] for name, found in offloaded.items()}
    assert peaks["none"] - peaks["optimizer"] >= 0.95 * states
    assert peaks["none"] - peaks["all"] >= 0.95 * (states + gradients)


def test_what_it_costs_is_logged(offloaded: dict[str, Any]) -> None:
    assert all(seconds is None for seconds in offloaded["none"]["seconds"])
    assert all(seconds > 0 for seconds in offloaded["optimizer"]["seconds"][1:])
    assert offloaded["optimizer"]["bytes"][2] == 8 * offloaded["none"]["parameters"]


def test_peaks_are_the_phases_own(offloaded: dict[str, Any]) -> None:
    for phases in offloaded["none"]["phases"]:
        assert {"generate", "update"} <= set(phases)
        for peak in phases.values():
            assert 0 < peak["allocated"] <= peak["reserved"]
    last = offloaded["none"]["phases"][-1]
    assert last["update"]["allocated"] > last["generate"]["allocated"]


def test_the_allocators_cap_is_kept(softnpu: Callable[..., dict[str, str]]) -> None:
    lines = run_softnpu(CAPPED, environment=softnpu()).splitlines()
    assert lines[0] == "refused: True"
    assert lines[1].startswith("memory.trainer_gb=1.04858e+06: the device has 64.00 GiB")


def test_on_cpu_there_is_no_cap_and_peaks_are_above_the_baseline() -> None:
    import numpy as np

    from ascent import devices
    from ascent.errors import InputError
    from ascent.memory.measured import Peaks

    with pytest.raises(InputError, match="kept by an accelerator's allocator"):
        devices.limit_allocator(2**30)
    peaks = Peaks.from_now()
    large = np.ones(2**24)  # 128 MiB that are really there
    del large
    peaks.left("generate")
    peaks.left("update")
    step = peaks.take_step()
    assert 2**27 * 0.9 < step["phases"]["generate"]["allocated"] < 2**27 * 1.5
    assert step["phases"]["update"]["allocated"] < 2**26  # the peak was counted anew
    assert step["peak_bytes"] == step["phases"]["generate"]["allocated"] + peaks.baseline
    assert peaks.step == {}
