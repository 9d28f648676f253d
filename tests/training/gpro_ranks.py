"""One of several training processes: `torchrun gpro_ranks.py POLICY FOLDER NAME...`, each with its part of the rows.

The gradients of each named training of `SCENARIOS`, after the penalty, are written to FOLDER/NAME-RANK.pt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.training.batches.cases import CASES, Case
from tests.training.batches.gradients_of_ranks import RANKS, main, part
from tests.training.batches.ragged_batches import make, rows_of
from tests.training.batches.windows import ALL_SAVINGS

from ascent.algorithms.gpro import GPRO
from ascent.config.trl_fields import NOTHING_SAVED

PENALTY: Mapping[str, Any] = {
    "gradient_penalty_form": "norm",
    "gradient_penalty_strength": 1.0,
    "gradient_penalty_radius": 0.05,
}


@dataclass(frozen=True)
class Scenario:
    """A training of two ranks. `own`: old log-probabilities are those of the policy. `slow`: among the slow tests."""

    case: Case
    savings: Mapping[str, Any]
    penalty: Mapping[str, Any] = field(default_factory=lambda: PENALTY)
    sharded: bool = False
    slow: bool = False


_CASE = replace(CASES["plain"], ragged=replace(CASES["plain"].ragged, groups=8), slices=2, accumulation=2)
_OWN = replace(_CASE, ragged=replace(_CASE.ragged, old=False))
_KEEP_OLD = {**ALL_SAVINGS, "skip_old_logps": False}
SCENARIOS: dict[str, Scenario] = {
    "micro-batches": Scenario(_OWN, NOTHING_SAVED),
    "sub-batches": Scenario(_CASE, _KEEP_OLD),
    "auto": Scenario(_CASE, _KEEP_OLD, {"gradient_penalty_strength": 0.5}),
    "part": Scenario(_CASE, _KEEP_OLD, {**PENALTY, "gradient_penalty_fraction": 0.5}),
    "sharded": Scenario(_CASE, _KEEP_OLD, sharded=True, slow=True),
    "sharded-micro-batches": Scenario(_OWN, NOTHING_SAVED, sharded=True, slow=True),
    "sharded-norms": Scenario(
        _CASE, _KEEP_OLD, {**PENALTY, "gradient_penalty_parameters": "norms"}, sharded=True, slow=True
    ),
    "sharded-part": Scenario(_CASE, _KEEP_OLD, {**PENALTY, "gradient_penalty_fraction": 0.5}, sharded=True, slow=True),
    "sharded-auto": Scenario(_CASE, _KEEP_OLD, {"gradient_penalty_strength": 0.5}, sharded=True, slow=True),
}


def generations(case: Case, policy: Path) -> list[Any]:
    """All rows of both ranks."""
    from tests.training.batches.windows import policy_logps

    return [make(case.ragged, seed, policy_logps(policy)) for seed in range(case.generations)]


def train(name: str, policy: Path, folder: Path) -> None:
    """One training; what this rank saw."""
    import torch
    import torch.distributed.tensor
    from tests.training.batches.windows import arguments, drive, our_trainer

    scenario, rank = SCENARIOS[name], int(os.environ["RANK"])
    case = scenario.case
    batches = {**case.batches, "per_device_train_batch_size": case.ragged.rows // case.slices // RANKS}
    sharding = {"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2}} if scenario.sharded else {}
    settings = {**case.settings, **batches, **sharding, **scenario.savings}
    trainer = our_trainer(
        policy,
        arguments(folder / "out", **settings),
        prompts=case.ragged.groups * case.generations,
        algorithm=GPRO(**scenario.penalty),
    )
    mine = [rows_of(generation, part(case, rank)) for generation in generations(case, policy)]
    windows = drive(trainer, mine)
    sharded = any(isinstance(each, torch.distributed.tensor.DTensor) for each in trainer.model.parameters())
    found = [{"gradient": window.gradient, "logs": window.logs, "sharded": sharded} for window in windows]
    torch.save(found, folder / f"{name}-{rank}.pt")


if __name__ == "__main__":
    main(train)
