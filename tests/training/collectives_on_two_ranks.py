"""Timed collectives of two ranks, for test_two_ranks: scenarios that `two_ranks.py` runs in both processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.small_trainer import Memory, make_trainer, vowels
from tests.training.records_on_two_ranks import Write

LATE = 0.4  # seconds


def timed(policy: Path, folder: Path, rank: int, write: Write) -> None:
    """Rank 1 is late: rank 0 waits for it in a gather, then in the backward passes of DDP and of FSDP."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from ascent.training.step.collectives import Collectives, DdpTimer

    usual = dist.all_gather_object
    collectives, ddp_timer = Collectives(), DdpTimer()
    dist.barrier()
    collectives.listen()
    collectives.listen()
    found: dict[str, Any] = {}

    late(rank)
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, rank)
    found["gather"], found["gathered"] = dict(collectives.take()), gathered
    found["nothing"] = dict(collectives.take())

    torch.manual_seed(0)
    plain = torch.nn.Linear(64, 64)
    model = DistributedDataParallel(plain)
    found["before"] = ddp_timer.take(model) is None
    for _ in range(3):
        late(rank)
        model(torch.ones(4, 64)).sum().backward()
        times = ddp_timer.take(model)
        assert times is not None
        found["ddp"] = [times.whole, times.exposed]
    found["again"] = ddp_timer.take(model) is None
    found["other"] = ddp_timer.take(plain) is None

    sharded = torch.nn.Linear(64, 64)
    fully_shard(sharded)
    collectives.take()
    loss = sharded(torch.ones(4, 64)).sum()
    late(rank)
    loss.backward()
    found["fsdp"] = dict(collectives.take())
    collectives.stop()
    found["restored"] = dist.all_gather_object is usual
    write("timed", None, **found)


def waited(policy: Path, folder: Path, rank: int, write: Write) -> None:
    """Rank 1's rewards take longer; what rank 0 records of it."""

    def reward(completions: list[str], **rest: Any) -> list[float]:
        late(rank)
        return vowels(completions, **rest)

    memory = Memory()
    make_trainer(policy, folder / "waited", memory, reward=reward, max_steps=2).train()
    steps = [[step.times.step, dict(step.metrics)] for step in memory.steps]
    write("waited", None, steps=steps)


def late(rank: int) -> None:
    if rank == 1:
        time.sleep(LATE)


SCENARIOS = (timed, waited)
