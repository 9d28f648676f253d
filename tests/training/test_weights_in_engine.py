"""What the engine holds is known by content, whoever changed the weights; and which engines may sample ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.far_engine import FarEngine
from tests.small_trainer import make_trainer
from tests.training.test_served import train

from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings

pytestmark = pytest.mark.torch


def updates(engine: FarEngine) -> int:
    return sum(what == "update" for what, _ in engine.events)


def test_any_change_of_the_weights_reaches_the_engine_and_none_does_not(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    import torch

    engine = FarEngine()
    _, trainer = train(tiny_policy(), tmp_path, engine, max_steps=1)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.sync_engine()
    assert updates(engine) == 2, "before the step, and after it"
    trainer.sync_engine()
    assert updates(engine) == 2, "nothing has changed since"
    weight = trainer.model.model.norm.weight

    def write_into_data() -> None:
        weight.data.mul_(1.5)

    def replace_data() -> None:
        weight.data = weight.data.clone() + 0.25

    def swap_two_values() -> None:
        row = trainer.model.model.embed_tokens.weight.data[7]
        row[[1, 2]] = row[[2, 1]]

    def load_others() -> None:
        trainer.model.load_state_dict(before)

    for number, change in enumerate((write_into_data, replace_data, swap_two_values, load_others), start=3):
        with torch.no_grad():
            change()
        trainer.sync_engine()
        assert updates(engine) == number, change.__name__
        trainer.sync_engine()
        assert updates(engine) == number
    assert engine.canaries[1].logps == engine.canaries[-1].logps, "these are the weights of the first step again"


def test_completions_carry_the_number_of_optimizer_steps_whatever_was_delivered(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    engine = FarEngine()
    memory, trainer = train(tiny_policy(), tmp_path, engine, max_steps=2)
    trainer.model.model.norm.weight.data.mul_(1.5)
    trainer.sync_engine()
    assert engine.events[-1] == ("update", 2)
    trainer.model.model.norm.weight.data.mul_(1.5)
    trainer.sync_engine()
    assert engine.events[-1] == ("update", 3), "other weights have another version in the engine"
    groups = trainer._groups([[5, 6]] * 4, [{"prompt": "x"}] * 4, 4, "9")
    assert {each.weight_version for each in trainer.sample(groups, lambda *_: None)} == {2}
    assert [{record.weight_version for record in records} for _, records, _ in memory.generations] == [{0}, {1}]


def test_after_loading_the_best_model_the_engine_gets_it(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    from datasets import Dataset

    from ascent import GRPOConfig, GRPOTrainer

    calls: list[int] = []

    def falling(completions: list[str], **_: Any) -> list[float]:
        """Every call earns less than the one before it, so that the first evaluation stays the best."""
        calls.append(1)
        return [place / 10 - len(calls) for place, _ in enumerate(completions)]

    engine = FarEngine()
    rows = Dataset.from_list([{"prompt": f"def f{number}(a):"} for number in range(8)])
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "max_steps": 2,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "use_vllm": True,
        "vllm_mode": "server",
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_reward",
        "greater_is_better": True,
    }
    trainer = GRPOTrainer(
        str(tiny_policy()),
        falling,
        GRPOConfig(str(tmp_path), **settings),
        train_dataset=rows,
        eval_dataset=rows.select(range(4)),
        engine=engine,
    )
    trainer.train()
    assert str(trainer.state.best_model_checkpoint).endswith("checkpoint-1")
    trainer.sync_engine()  # as the evaluation after training does
    first, best, last, held = (engine.canaries[place].logps for place in (0, 1, 2, -1))
    assert best not in (first, last)
    assert held == best


@pytest.mark.parametrize(
    ("engine", "settings", "staleness", "message"),
    [
        (None, {}, 1, "samples with the trainer's own model"),
        (EngineSettings("nowhere", "float32", 64), {}, 1, "samples in the trainer's process"),
        ("vllm", {}, 1, "samples in the trainer's process"),
        (FarEngine(), {}, 2, "staleness=2: should be 0"),
        (FarEngine(), {}, -1, "staleness=-1: should be 0"),
        (None, {"plain": True}, 1, "plain=True: TRL's own path is taken, on which staleness would not be used"),
    ],
)
def test_only_an_engine_that_samples_elsewhere_samples_ahead(
    tiny_policy: Callable[..., Path],
    tmp_path: Path,
    engine: Any,
    settings: dict[str, Any],
    staleness: int,
    message: str,
) -> None:
    with pytest.raises(InputError, match=message):
        make_trainer(tiny_policy(), tmp_path, engine=engine, staleness=staleness, **settings)
