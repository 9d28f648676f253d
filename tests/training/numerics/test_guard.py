"""Bad steps in real trainings: skipped, counted, explained; the schedule waits; too many end the training."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.small_trainer import Memory, make_trainer
from tests.training.numerics import planting

pytestmark = pytest.mark.torch
NAN, INF = math.nan, math.inf
Policy = Callable[..., Path]
STEP = random.Random("bad").randrange(1, 5)  # of four


class Watched:
    """A training of four steps whose weights and optimizer state are looked at after each."""

    def __init__(self, policy: Path, output: Path, **settings: Any) -> None:
        self.memory = Memory()
        self.trainer = make_trainer(policy, output, self.memory, **settings)
        self.states = [self._state()]
        usual = self.trainer._maybe_log_save_evaluate

        def looked_at(*args: Any, **keywords: Any) -> None:
            if self.trainer.state.global_step == len(self.states):
                self.states.append(self._state())
            usual(*args, **keywords)

        self.trainer._maybe_log_save_evaluate = looked_at

    def _state(self) -> dict[str, Any]:
        import torch

        found = {name: value.detach().clone() for name, value in self.trainer.model.named_parameters()}
        states = self.trainer.optimizer.state.values() if self.trainer.optimizer is not None else ()
        for number, each in enumerate(states):
            found |= {f"{number}/{name}": torch.as_tensor(value).clone() for name, value in each.items()}
        return copy.copy(found)

    def moved(self) -> list[bool]:
        """Of each step: whether weights or optimizer changed."""
        import torch

        pairs = zip(self.states, self.states[1:], strict=False)
        return [
            before.keys() != after.keys() or any(not torch.equal(before[name], after[name]) for name in before)
            for before, after in pairs
        ]

    def all_finite(self) -> bool:
        import torch

        return all(bool(torch.isfinite(value).all()) for state in self.states for value in state.values())

    def series(self, name: str) -> list[float | None]:
        return [step.metrics.get(name) for step in self.memory.steps]


def finding(output: Path, step: int) -> dict[str, Any]:
    about = json.loads((output / "bad-steps" / str(step) / "step.json").read_text())
    found: dict[str, Any] = about["finding"]
    return found


PLANTS: dict[str, tuple[Callable[[Any], contextlib.AbstractContextManager[None]], str, str]] = {
    "logits": (lambda t: planting.in_output(t, "model.norm", {STEP}, NAN), "output", "model.norm"),
    "a layer": (lambda t: planting.in_output(t, "model.layers.1.mlp", {STEP}, INF), "output", "model.layers.1.mlp"),
    "embeddings": (lambda t: planting.in_output(t, "model.embed_tokens", {STEP}, NAN), "output", "model.embed_tokens"),
    "attention's gradient": (
        lambda t: planting.in_gradient(t, "model.layers.0.self_attn.v_proj", {STEP}, NAN),
        "gradient",
        "model.layers.0.self_attn.v_proj",
    ),
    "a gradient": (
        lambda t: planting.in_gradient(t, "model.layers.1.mlp.down_proj", {STEP}, INF),
        "gradient",
        "model.layers.1.mlp.down_proj",
    ),
    "advantages": (lambda t: planting.in_advantages(t, STEP, NAN), "input", "advantages"),
    "nothing": (lambda t: planting.once(t, "model.layers.0.mlp", STEP), "nothing", ""),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_bad_step_is_skipped_and_its_culprit_named(
    tiny_policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str], plant: str
) -> None:
    run = Watched(tiny_policy(), tmp_path, learning_rate=1e-2)
    planted, kind, where = PLANTS[plant]
    with planted(run.trainer):
        run.trainer.train()
    steps = [1, 2, 3, 4]
    assert run.moved() == [step != STEP for step in steps]
    assert run.all_finite()
    assert run.series("numerics/bad_step") == [float(step == STEP) for step in steps]
    norms = run.series("grad_norm")
    assert [norm is not None and math.isfinite(norm) for norm in norms] == [step != STEP for step in steps]
    found = finding(tmp_path, STEP)
    assert (found["kind"], found["where"]) == (kind, where)
    told = capsys.readouterr().err
    assert f"step {STEP} was skipped: the gradient's norm is {norms[STEP - 1]}" in told
    assert "suspect" in told
    made = [step - 1 - (step > STEP) for step in steps]  # good steps before each
    assert run.series("learning_rate") == pytest.approx([1e-2 * (1 - each / 4) for each in made]), "linear, and waits"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_grad_norm": 0.0},
        {"max_grad_norm": None},
        {"max_tokens_per_batch": 24, "loss_type": "dapo"},
        {"max_tokens_per_batch": None, "skip_zero_advantage": False, "gradient_accumulation_steps": 4},
        {"plain": True},
        {"gradient_checkpointing": True, "beta": 0.1},
        {"num_iterations": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 1, "logging_steps": 2},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_so_it_is_however_a_step_is_made(tiny_policy: Policy, tmp_path: Path, settings: dict[str, Any]) -> None:
    run = Watched(tiny_policy(), tmp_path, **settings)
    with planting.in_output(run.trainer, "model.layers.1.self_attn", {2}, INF):
        run.trainer.train()
    assert run.moved() == [True, False, True, True]
    assert run.all_finite()
    assert finding(tmp_path, 2)["where"] == "model.layers.1.self_attn"
    assert finding(tmp_path, 2)["of_attention"]
    logs = [each for each in run.trainer.state.log_history if "loss" in each]
    assert not math.isfinite(logs[2 // settings.get("logging_steps", 1) - 1]["loss"]), "the log says it"
    assert math.isfinite(logs[-1]["loss"]), "and the next steps' are their own"


def test_what_a_repetition_leaves_behind(tiny_policy: Policy, tmp_path: Path) -> None:
    """The steps after a bad one are those of a training in which it just did nothing: no random number, no metric and
    no gradient is left of the repetition."""
    runs = []
    for name in ("explained", "silent"):
        run = Watched(tiny_policy(), tmp_path / name)
        if name == "silent":
            from ascent.training.numerics import bad_step

            run.trainer._numerics.kept.keep = lambda *_: None
            silent = pytest.MonkeyPatch()
            silent.setattr(bad_step, "treat", lambda trainer, model, norm: None)
        with planting.in_output(run.trainer, "model.layers.0", {2}, NAN):
            run.trainer.train()
        runs.append(run)
    silent.undo()
    import torch

    explained, silent_run = runs
    for name, value in explained.states[-1].items():
        assert torch.equal(value, silent_run.states[-1][name]), name
    for mine, theirs in zip(explained.memory.steps, silent_run.memory.steps, strict=True):
        apart = ("step_time", "time/", "profiling/")
        names = {name for name in theirs.metrics if not name.startswith(apart)}
        assert {name: str(mine.metrics[name]) for name in names} == {name: str(theirs.metrics[name]) for name in names}


def test_too_many_in_a_row_end_the_training_with_a_checkpoint(tiny_policy: Policy, tmp_path: Path) -> None:
    from ascent.training.numerics.guard import NotFiniteError

    run = Watched(tiny_policy(), tmp_path, max_steps=12, max_bad_steps=2)
    with (
        planting.in_output(run.trainer, "model.layers.0", {1, 3, 5, 6, 7}, NAN),
        pytest.raises(NotFiniteError, match=r"the last 2 steps \(to step 6\) were not finite"),
    ):
        run.trainer.train()
    assert run.moved() == [False, True, False, True, False, False]
    assert (tmp_path / "checkpoint-6" / "ascent_state.json").is_file()
    kept = {int(path.name): path for path in (tmp_path / "bad-steps").iterdir()}
    assert sorted(kept) == [1, 3, 5, 6]
    weights = {step: json.loads((path / "step.json").read_text())["weights"] for step, path in kept.items()}
    assert weights == {1: "1", 3: None, 5: None, 6: None}, "of the first one; the others have had good steps since"
    assert (kept[1] / "model" / "model.safetensors").is_file()


def test_a_disk_that_takes_no_bad_step_does_not_end_the_training(
    tiny_policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad-steps").write_text("not a folder")
    run = Watched(tiny_policy(), tmp_path)
    with planting.in_output(run.trainer, "model.layers.0", {2}, NAN):
        run.trainer.train()
    assert run.moved() == [True, False, True, True]
    assert "could not be kept" in capsys.readouterr().err


@pytest.mark.parametrize("most", [0, -1, True, "3", None])
def test_a_bound_that_is_no_number_of_steps_is_refused(tiny_policy: Policy, tmp_path: Path, most: Any) -> None:
    from ascent.errors import InputError

    with pytest.raises(InputError, match="max_bad_steps="):
        make_trainer(tiny_policy(), tmp_path, max_bad_steps=most)


def test_overflows_of_float16_are_the_scaler_s(tiny_policy: Policy, tmp_path: Path) -> None:
    from ascent import devices

    if devices.kind() == "cpu":
        pytest.skip("float16 with a scaler needs an accelerator (tests/npu)")
    run = Watched(tiny_policy(), tmp_path, fp16=True)
    with planting.in_gradient(run.trainer, "model.layers.1.mlp", {2}, INF):
        run.trainer.train()
    assert run.moved() == [True, False, True, True]
    assert run.all_finite()
    assert run.series("numerics/overflow") == [None, 1.0, None, None]
    assert run.series("numerics/bad_step") == [0.0] * 4
    assert not (tmp_path / "bad-steps").exists()


class OfScaler:
    """One weight, accelerate's optimizer over it, with torch's scaler of fp16."""

    def __init__(self, scale: float) -> None:
        from types import SimpleNamespace

        import torch
        from accelerate import Accelerator
        from accelerate.optimizer import AcceleratedOptimizer

        from ascent import GRPOConfig
        from ascent.training.numerics.guard import StepGuard

        self.guard = StepGuard(GRPOConfig("unused", use_cpu=True, bf16=False))
        Accelerator(cpu=True)  # sets up the state that the optimizer asks for
        self.weight = torch.nn.Parameter(torch.ones(2))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)
        inner = torch.optim.AdamW([self.weight], lr=0.1)
        self.optimizer = AcceleratedOptimizer(inner, device_placement=False, scaler=scaler)
        self.accelerator = SimpleNamespace(scaler=scaler, distributed_type="NO")

    def step(self, gradient: float) -> bool:
        """Whether it was refused."""
        import torch

        self.weight.grad = torch.full((2,), gradient * self.accelerator.scaler.scale(torch.ones(())).item())
        self.accelerator.scaler.unscale_(self.optimizer.optimizer)
        norm = torch.nn.utils.clip_grad_norm_([self.weight], 1.0)
        refused = self.guard.refuses(norm, self.accelerator, self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return refused


def test_an_overflow_is_the_scaler_s_until_its_scale_is_below_one() -> None:
    import torch

    training = OfScaler(scale=4.0)
    assert not training.step(0.5)
    assert not training.optimizer.step_was_skipped
    before = training.weight.detach().clone()
    refused = [training.step(INF) for _ in range(4)]  # 4 -> 2 -> 1 -> 0.5 -> 0.25
    assert refused == [False, False, True, True]
    assert training.optimizer.step_was_skipped
    assert torch.equal(training.weight, before)
    assert (training.guard.overflows, training.guard.bad_steps, training.guard.in_a_row) == (4, 2, 2)
    assert not training.step(0.5)
    assert not training.optimizer.step_was_skipped, "so the schedule goes on"
    assert not torch.equal(training.weight, before)
    assert training.guard.in_a_row == 0
