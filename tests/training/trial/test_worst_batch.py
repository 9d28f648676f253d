"""The worst batch: a real step in which every sequence is as long as it may become, and none is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small_trainer import Memory, make_trainer

from ascent.training.batches.rows import NEWEST, PLACE
from ascent.training.trial.worst_batch import take_worst_batch, worst_batch

pytestmark = pytest.mark.torch
PROMPT, COMPLETION = 19, 24


def stretched(trainer: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Train one step of the trainer's own and one on the worst batch; the shapes (prompts, completions) of the passes
    of the second."""
    from transformers import TrainerCallback

    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    counted = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        if trainer.state.global_step == 1:
            shapes.append((tuple(inputs["prompt_ids"].shape), tuple(inputs["completion_ids"].shape)))
        return counted(model, inputs, *arguments, **keywords)

    class Then(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                assert take_worst_batch(trainer, PROMPT, COMPLETION) == 8
            else:
                control.should_training_stop = True

    trainer.compute_loss = compute_loss
    trainer.add_callback(Then())
    trainer.train()
    assert trainer.state.global_step == 2
    return shapes


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_tokens_per_batch": None, "skip_zero_advantage": False},
        {"beta": 0.1},
        {"num_iterations": 2},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"entropy_coef": 0.01},
        {"gpro": True},
    ],
    ids=["usual", "micro-batches", "reference", "twice", "sequences", "entropy", "gpro"],
)
def test_every_row_has_its_full_length(
    settings: dict[str, Any], tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    memory = Memory()
    shapes = stretched(make_trainer(tiny_policy(), tmp_path, memory, **settings))
    once = shapes[: len(shapes) // 2] if settings.get("gpro") else shapes  # GPRO computes its rows a second time
    assert sum(rows for (rows, _), _ in once) == 8, "no row of the step is left out"
    assert {columns for (_, columns), _ in shapes} == {PROMPT}
    assert {columns for _, (_, columns) in shapes} == {COMPLETION}
    first, worst = memory.steps
    assert worst.times.update > 0
    assert worst.metrics["loss"] is not None
    assert len(memory.generations) == 1, "nothing is sampled for it"
    assert worst.device["phases"]["update"]["allocated"] >= 0
    assert first.metrics.get("reward") is not None


def test_what_it_is_made_of() -> None:
    like = {
        "prompt_ids": torch.zeros(4, 3, dtype=torch.long),
        "prompt_mask": torch.tensor([[0, 1, 1]] * 4),
        "completion_ids": torch.zeros(4, 2, dtype=torch.long),
        "completion_mask": torch.tensor([[1, 0]] * 4),
        "advantages": torch.zeros(4),
        "sampling_per_token_logps": torch.zeros(4, 2),
        "importance_sampling_ratio": torch.full((4, 1), 0.5),
        "num_items_in_batch": torch.tensor(4),
        PLACE: torch.arange(4),
        NEWEST: torch.ones(4, dtype=torch.bool),
        "old_per_token_logps": None,
    }
    torch.manual_seed(0)
    first, second = worst_batch(like, prompt=50, completion=60, micro_batches=2, group=2, vocabulary=1000, processes=3)
    ids = torch.cat([first["prompt_ids"], second["prompt_ids"]])
    assert ids.shape == (8, 50)
    assert len({tuple(row) for row in ids.tolist()}) == 4, "a prompt for each group of 2"
    assert torch.equal(ids[0], ids[1])
    completions = torch.cat([first["completion_ids"], second["completion_ids"]]).tolist()
    assert len({tuple(row) for row in completions}) == 8, "equal rows would be computed once"
    for batch in (first, second):
        assert batch["completion_mask"].shape == (4, 60)
        assert batch["prompt_mask"].all()
        assert batch["completion_mask"].all()
        assert batch["advantages"].tolist() == [1, -1, 1, -1]
        assert batch["sampling_per_token_logps"].shape == (4, 60)
        assert batch["importance_sampling_ratio"].shape == (4, 1), "one of a whole sequence stays one"
        assert int(batch["num_items_in_batch"]) == 8 * 60 * 3, "the tokens of all processes"
        assert not batch[NEWEST].any(), "random tokens say nothing of the sampler"
        assert batch["old_per_token_logps"] is None
    assert [*first[PLACE].tolist(), *second[PLACE].tolist()] == list(range(8))


def test_it_is_one_step(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """Afterwards the trainer samples again."""
    memory = Memory()
    trainer = make_trainer(tiny_policy(), tmp_path, memory, max_steps=3)
    from transformers import TrainerCallback

    class Then(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                take_worst_batch(trainer, PROMPT, COMPLETION)

    trainer.add_callback(Then())
    trainer.train()
    assert len(memory.steps) == 3
    assert len(memory.generations) == 2
