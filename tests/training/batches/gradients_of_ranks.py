"""One of several training processes over gloo or hccl: `torchrun gradients_of_ranks.py POLICY FOLDER NAME...`.

Every process has its part of each generation. The gradients of each named training of `SCENARIOS`, with what was
logged, are written to FOLDER/NAME-RANK.pt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from tests.training.batches.cases import CASES, Case, with_loss
from tests.training.batches.ragged_batches import Generation, make, rows_of
from tests.training.batches.windows import ALL_SAVINGS

from ascent.config.trl_fields import NOTHING_SAVED
from ascent.host.ending import end_at_once

RANKS = 2


@dataclass(frozen=True)
class Scenario:
    """A training of two ranks: with `savings` by Ascent, without by TRL. `silent`: a rank that has no signal at all.
    `sharded`: by this version of FSDP. `slow`: only among the slow tests."""

    case: Case
    savings: Mapping[str, Any] | None
    silent: int | None = None
    sharded: int | None = None
    slow: bool = False


_CASE = replace(CASES["plain"], ragged=replace(CASES["plain"].ragged, groups=8), slices=4, accumulation=4)
_KL = replace(_CASE, settings={"beta": 0.1}, ragged=replace(_CASE.ragged, reference=True))
_HALVES = replace(_CASE, accumulation=2, whole=False)  # each rank shuffles its rows, so what a window holds differs
SCENARIOS: dict[str, Scenario] = {
    "nothing-saved": Scenario(_CASE, NOTHING_SAVED, silent=0, slow=True),
    "first-silent": Scenario(_CASE, ALL_SAVINGS, silent=0),
    "second-silent": Scenario(_CASE, ALL_SAVINGS, silent=1, slow=True),
    "second-silent-unbalanced": Scenario(_CASE, {**ALL_SAVINGS, "balance_ranks": False}, silent=1),
    "both-learn": Scenario(_CASE, ALL_SAVINGS, slow=True),
    "tokens-of-all-ranks": Scenario(with_loss(_CASE, "dapo"), ALL_SAVINGS, silent=1),
    "kl": Scenario(_KL, ALL_SAVINGS, silent=1),
    "two-windows": Scenario(_HALVES, ALL_SAVINGS, silent=0),
    "two-windows-of-trl": Scenario(_HALVES, None, silent=0),
    "micro-batch-means": Scenario(with_loss(_CASE, "bnpo"), ALL_SAVINGS, silent=1),
    "micro-batch-means-of-trl": Scenario(with_loss(_CASE, "bnpo"), None, silent=1),
    "sharded": Scenario(_CASE, ALL_SAVINGS, silent=1, sharded=2, slow=True),
    "sharded-kl": Scenario(_KL, ALL_SAVINGS, silent=1, sharded=2, slow=True),
    "sharded-flat": Scenario(_CASE, ALL_SAVINGS, silent=1, sharded=1, slow=True),
    "sharded-flat-kl": Scenario(_KL, ALL_SAVINGS, silent=1, sharded=1, slow=True),
}


def generations(scenario: Scenario, policy: Path) -> list[Generation]:
    """All rows of both ranks."""
    from tests.training.batches.windows import policy_logps

    case = scenario.case
    made = [make(case.ragged, seed, policy_logps(policy)) for seed in range(case.generations)]
    if scenario.silent is not None:
        for generation in made:
            generation["advantages"][part(case, scenario.silent)] = 0.0
    return made


def part(case: Case, rank: int) -> slice:
    """The rows of a rank."""
    rows = case.ragged.rows // RANKS
    return slice(rank * rows, (rank + 1) * rows)


def train(name: str, policy: Path, folder: Path) -> None:
    """One training; what this rank saw."""
    import torch
    from tests.training.batches.windows import arguments, drive, our_trainer, stock_trainer

    from ascent.training.batches.passes.support import sharded

    scenario, rank = SCENARIOS[name], int(os.environ["RANK"])
    case = scenario.case
    batches = {**case.batches, "per_device_train_batch_size": case.ragged.rows // case.slices // RANKS}
    sharding = {"fsdp": "full_shard", "fsdp_config": {"fsdp_version": scenario.sharded}} if scenario.sharded else {}
    settings = {**case.settings, **batches, **sharding, **(scenario.savings or {})}
    builder = stock_trainer if scenario.savings is None else our_trainer
    trainer = builder(policy, arguments(folder / "out", **settings), prompts=case.ragged.groups * case.generations)
    mine = [rows_of(generation, part(case, rank)) for generation in generations(scenario, policy)]
    windows = drive(trainer, mine)
    assert sharded(trainer.model_wrapped) == bool(scenario.sharded)
    found = [
        {"gradient": window.gradient, "loss": window.logs["loss"], "metrics": window.metrics} for window in windows
    ]
    torch.save(found, folder / f"{name}-{rank}.pt")


def main(train: Callable[[str, Path, Path], None]) -> NoReturn:
    """`train` all that are named, one after another, in the same processes; then end this one."""
    policy, folder, *names = sys.argv[1:]
    for name in names:
        train(name, Path(policy), Path(folder))
    end_at_once(0)


if __name__ == "__main__":
    main(train)
