"""One of two training processes, for test_guard_of_ranks and tests/npu: `guard_of_ranks.py POLICY FOLDER [fsdp]`.

NaN is planted on rank 1 alone. What each rank saw is written to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from tests.small_trainer import Memory, make_trainer
from tests.training.numerics import planting

from ascent.host.ending import end_at_once

POLICY, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
RANK = int(os.environ["RANK"])
SHARDED: dict[str, Any] = {"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2}} if "fsdp" in sys.argv else {}


def whole(value: Any) -> Any:
    """A weight's content, gathered where it is sharded."""
    detached = value.detach()
    return detached.full_tensor() if hasattr(detached, "full_tensor") else detached


def main() -> None:
    """Seven steps, of which the second, fifth and sixth are bad on rank 1."""
    import torch

    from ascent.training.numerics.guard import NotFiniteError

    memory = Memory()
    # an odd number of rows with effect: one rank fills a pass that the other doesn't need
    settings = {"max_steps": 7, "max_bad_steps": 2, "gradient_accumulation_steps": 1, "num_generations": 2}
    trainer = make_trainer(POLICY, FOLDER / "out", memory, **settings, **SHARDED)
    sums: dict[int, float] = {}  # after each step
    usual = trainer._maybe_log_save_evaluate

    def looked_at(*args: Any, **keywords: Any) -> None:
        total = sum(whole(value).abs().sum() for value in trainer.model.parameters())
        sums.setdefault(trainer.state.global_step, float(total))
        usual(*args, **keywords)

    trainer._maybe_log_save_evaluate = looked_at
    mine: set[int] = {2, 5, 6} if RANK == 1 else set()
    ended = ""
    with (
        planting.in_output(trainer, "model.layers.1.mlp", mine & {2, 5}, math.nan),
        planting.in_gradient(trainer, "model.layers.0.mlp.up_proj", mine & {6}, math.inf),
    ):
        try:
            trainer.train()
        except NotFiniteError as error:
            ended = str(error)
    finite = all(bool(torch.isfinite(whole(value)).all()) for value in trainer.model.parameters())
    guard = trainer._numerics.guard
    found = {
        "sums": list(sums.values()),
        "finite": finite,
        "bad": guard.bad_steps,
        "ended": ended,
        "step": trainer.state.global_step,
    }
    trainer.accelerator.wait_for_everyone()
    (FOLDER / f"{RANK}.json").write_text(json.dumps(found))
    end_at_once(0)


if __name__ == "__main__":
    main()
