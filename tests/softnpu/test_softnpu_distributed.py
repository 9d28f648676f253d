"""Two processes on the software NPU: collectives over `hccl`, accelerate with DDP and with FSDP2."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
from tests.softnpu_env import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
Environment = Callable[..., dict[str, str]]

PROGRAM = """
import os, torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState

accelerator = Accelerator()
rank, report = accelerator.process_index, {}
here = accelerator.device
report["accelerate"] = (str(here), str(accelerator.distributed_type), dist.get_backend(), torch.npu.current_device())

def filled(value, size=2, dtype=None):
    return torch.full((size,), float(value), device=here, dtype=dtype)

# Collectives.
x = filled(rank + 1)
dist.all_reduce(x)
report["all_reduce"] = x.tolist()
dist.all_reduce(x, op=dist.ReduceOp.MAX)
report["all_reduce max"] = x.tolist()
parts = [filled(-1) for _ in range(2)]
dist.all_gather(parts, filled(rank))
report["all_gather"] = [p.tolist() for p in parts]
whole = filled(-1, 4)
dist.all_gather_into_tensor(whole, filled(rank))
report["all_gather_into_tensor"] = whole.tolist()
piece = filled(-1)
dist.reduce_scatter_tensor(piece, torch.arange(4.0, device=here))
report["reduce_scatter_tensor"] = piece.tolist()
dist.reduce_scatter(piece, [filled(5), filled(rank)])
report["reduce_scatter"] = piece.tolist()
x = filled(rank)
dist.broadcast(x, 1)
report["broadcast"] = x.tolist()
other = filled(-1)
dist.send(filled(9), 1) if rank == 0 else dist.recv(other, 0)
report["recv"] = other.tolist()
dist.all_to_all_single(other, torch.arange(2.0, device=here) + 10 * rank)
report["all_to_all"] = other.tolist()
work = dist.all_reduce(filled(1, dtype=torch.bfloat16), async_op=True)
work.wait()
result = work.get_future().value()[0]
report["asynchronous"] = (result.tolist(), str(result.device), str(result.dtype))
view = torch.zeros(2, 4, device=here)[:, 2:]                          # not contiguous
with_view = filled(rank, 4).view(2, 2)
view.copy_(with_view)
dist.barrier()
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
report["objects"] = objects
listed = [{"from": rank}]
dist.broadcast_object_list(listed, 1)
report["object list"] = listed
report["gather"] = accelerator.gather(filled(rank, 1)).tolist()
try:
    dist.all_reduce(torch.ones(2))
except RuntimeError as problem:
    report["host tensor"] = str(problem)
sub = dist.new_group([0, 1], backend="hccl")
dist.all_reduce(x, group=sub)
report["new group"] = x.tolist()

# Training; an optimizer built before the move to the device. The reference: both batches on the host, unsharded.
def model_and_optimizer():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

batches = torch.randn(4, 2, 5, 6, generator=torch.Generator().manual_seed(1))
model, optimizer = model_and_optimizer()
expected = []
for step in batches:
    loss = model(step.flatten(0, 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    expected.append(loss.item())

def train(accelerator):
    model, optimizer = accelerator.prepare(*model_and_optimizer())
    losses = []
    for step in batches:
        loss = model(step[rank].to(accelerator.device)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    gap = max(abs(a - b) for a, b in zip(losses, expected))
    return type(model).__name__, type(next(model.parameters())).__name__, gap, losses[-1] < losses[0]

report["DDP"] = train(accelerator)
AcceleratorState._reset_state()
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Linear"])
report["FSDP2"] = train(Accelerator(fsdp_plugin=plugin))
dist.destroy_process_group()
print(report)
"""


@pytest.fixture(scope="module")
def reports(softnpu: Environment) -> list[dict[str, Any]]:
    outs = run_ranks(PROGRAM, {**softnpu(devices=2), "TOKENIZERS_PARALLELISM": "false"})
    return [ast.literal_eval(out.splitlines()[-1]) for out in outs]


def test_accelerate_finds_the_devices(reports: list[dict[str, Any]]) -> None:
    for rank, report in enumerate(reports):
        assert report["accelerate"] == (f"npu:{rank}", "DistributedType.MULTI_NPU", "hccl", rank)


def test_collectives(reports: list[dict[str, Any]]) -> None:
    for rank, report in enumerate(reports):
        expected = {
            "all_reduce": [3, 3],
            "all_reduce max": [3, 3],
            "all_gather": [[0, 0], [1, 1]],
            "all_gather_into_tensor": [0, 0, 1, 1],
            "reduce_scatter_tensor": [[0, 2], [4, 6]][rank],
            "reduce_scatter": [[10, 10], [1, 1]][rank],
            "broadcast": [1, 1],
            "recv": [[-1, -1], [9, 9]][rank],
            "all_to_all": [[0, 10], [1, 11]][rank],
            "asynchronous": ([2, 2], f"npu:{rank}", "torch.bfloat16"),
            "objects": [{"rank": 0}, {"rank": 1}],
            "object list": [{"from": 1}],
            "gather": [0, 1],
            "new group": [2, 2],
        }
        assert {name: report[name] for name in expected} == expected


def test_host_tensors_are_refused(reports: list[dict[str, Any]]) -> None:
    assert [report["host tensor"] for report in reports] == ["No backend type associated with device type cpu"] * 2


@pytest.mark.parametrize(
    ("kind", "model", "parameter"),
    [("DDP", "DistributedDataParallel", "Parameter"), ("FSDP2", "FSDPSequential", "DTensor")],
)
def test_training_is_as_on_one_host(reports: list[dict[str, Any]], kind: str, model: str, parameter: str) -> None:
    for report in reports:
        model_type, parameter_type, gap, falls = report[kind]
        assert (model_type, parameter_type, falls) == (model, parameter, True)
        assert gap < 1e-6
