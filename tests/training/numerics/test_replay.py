"""`ascent replay`: a kept step repeats elsewhere, what was found is found again, what can't be repeated is told."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.far_engine import FarEngine
from tests.small_trainer import make_trainer
from tests.training.numerics import planting
from tests.training.test_served import train

from ascent.errors import InputError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
Policy = Callable[..., Path]


def overflowing(policy: Path, folder: Path) -> Path:
    """A copy of the policy with two weights so large that their product overflows in one layer."""
    from safetensors.torch import load_file, save_file

    copy = folder / "overflowing"
    shutil.copytree(policy, copy)
    weights = load_file(copy / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0] = 1e30
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = 1e30
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def run_of(policy: Path, output: Path, **settings: Any) -> Path:
    """A training of three steps whose second was skipped since something was planted there; its folder."""
    trainer = make_trainer(policy, output, max_steps=3, **settings)
    with planting.in_output(trainer, "model.layers.0.mlp", {2}, math.nan):
        trainer.train()
    return output


def test_the_passes_of_a_step_are_read_as_they_were_written(tiny_policy: Policy, tmp_path: Path) -> None:
    import torch

    from ascent import devices
    from ascent.training.batches.kept_passes import Pass
    from ascent.training.batches.rows import SubBatch
    from ascent.training.numerics.kept_step import load_passes, save_passes

    rows: dict[str, Any] = {
        "completion_ids": torch.arange(6).reshape(2, 3),
        "advantages": torch.tensor([math.nan, 1.0]),
        "x": None,
    }
    before = [
        Pass(SubBatch(rows, 0.25), None, devices.randomness()),
        Pass(SubBatch({**rows, "number": 3}, 0.0, filling=True), None, devices.randomness()),
    ]
    save_passes(tmp_path / "rank0.safetensors", before)
    drawn = torch.rand(3)
    after = load_passes(tmp_path / "rank0.safetensors", torch.device("cpu"))
    assert [each.weight for each in after] == [0.25, 0.0]
    assert [each.rows.filling for each in after] == [False, True]  # type: ignore[attr-defined]
    assert after[1].rows["number"] == 3
    assert after[0].rows["x"] is None
    assert torch.equal(after[0].rows["completion_ids"], rows["completion_ids"])
    assert after[0].rows["advantages"].isnan().tolist() == [True, False]
    after[0].random.restore()
    assert torch.equal(torch.rand(3), drawn)
    (tmp_path / "rank0.safetensors").write_bytes(b"cut short")
    with pytest.raises(InputError, match="is not what a run writes"):
        load_passes(tmp_path / "rank0.safetensors", torch.device("cpu"))


# the coefficient of the bonus has moved by the second step, far enough to be seen in the gradient
ADAPTIVE = {
    "use_adaptive_entropy": True,
    "entropy_coef": 0.1,
    "entropy_coef_delta": 0.5,
    "entropy_coef_max": 1.0,
    "entropy_target": 100.0,
}


@pytest.mark.parametrize("settings", [{}, {"loss_type": "grpo", "beta": 0.1, "plain": True}, ADAPTIVE], ids=str)
def test_a_step_repeats_with_its_loss_and_gradients(
    tiny_policy: Policy, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """What was planted is not in the weights, so the replay is finite: it gives the gradient of the step without it."""
    import torch

    from ascent.training.replay import child, repeated

    output = tmp_path / "out"
    trainer = make_trainer(tiny_policy(), output, max_steps=3, **settings)
    seen: dict[str, Any] = {}
    usual = trainer._get_grad_norm

    def norm(model: Any, grad_norm: Any = None) -> Any:
        if trainer.state.global_step == 1:  # what the step's gradients would have been, made on the spot
            from ascent.training.batches.kept_passes import repeat

            passes = trainer._numerics.passes
            handles = list(planted._forward_hooks.items())
            planted._forward_hooks.clear()
            with passes.repeating(trainer):
                model.zero_grad()
                seen["losses"] = [float(repeat(trainer, model, each)) for each in passes.all]
                seen["gradients"] = {name: each.grad.clone() for name, each in trainer.model.named_parameters()}
            planted._forward_hooks.update(handles)
        return usual(model, grad_norm)

    trainer._get_grad_norm = norm
    planted = trainer.model.get_submodule("model.layers.0.mlp")
    with planting.in_output(trainer, "model.layers.0.mlp", {2}, math.nan):
        trainer.train()
    kept = output / "bad-steps" / "2"
    child.main(kept, kept / "model", 0, "kept", tmp_path / "again")
    again = repeated.load(tmp_path / "again")
    assert again.finding.kind == "nothing"
    assert list(again.losses) == pytest.approx(seen["losses"], abs=1e-6)
    assert set(again.parameters) == set(seen["gradients"])
    for name, gradient in seen["gradients"].items():
        torch.testing.assert_close(again.gradient(name), gradient.cpu(), atol=1e-6, rtol=1e-4)
    assert all(bool((logps <= 0).all()) for logps in again.logps.values())


@pytest.mark.slow
def test_the_command_says_that_weights_and_batch_give_it(
    tiny_policy: Policy, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from ascent.cli import main

    policy = overflowing(tiny_policy(), tmp_path)
    _, trainer = train(policy, tmp_path / "out", FarEngine(), max_steps=1)
    assert trainer._numerics.guard.bad_steps == 1
    capfd.readouterr()
    code = main(["replay", str(tmp_path / "out"), "1", "--json"])
    out, err = capfd.readouterr()
    assert code == 1
    told = json.loads(out)
    assert told["schema"] == "ascent.replay/1"
    assert told["kept"]["where"] == told["repeated"]["finding"]["where"] == "model.layers.1.mlp.down_proj"
    assert told["kept"]["kind"] == told["repeated"]["finding"]["kind"] == "output"
    assert told["reference"] is None
    assert "it repeats: the weights and the batch give it" in err


def test_the_device_is_compared_with_the_cpu(tiny_policy: Policy, tmp_path: Path) -> None:
    from ascent import devices
    from ascent.training.replay.replaying import replay

    if devices.kind() == "cpu":
        pytest.skip("there is no other device (tests/npu)")
    found = replay(run_of(tiny_policy(), tmp_path / "out"), 2, device=None, dtype=None)
    assert found.tried.device.startswith(devices.kind())
    assert found.reference is not None
    assert found.reference.device.startswith("cpu")
    assert found.comparison is not None
    assert found.comparison.logps_max < 1e-4
    assert all(each.cosine > 0.999 for each in found.comparison.modules)
    assert found.good


@pytest.mark.slow
def test_another_precision_is_compared_with_the_cpu_s_float32(tiny_policy: Policy, tmp_path: Path) -> None:
    from ascent.training.replay.replaying import replay

    output = run_of(tiny_policy(), tmp_path / "out", bf16=True)
    found = replay(output, 2, device=None, dtype=None)
    assert found.tried.computing == "bfloat16"
    assert found.reference is not None
    assert found.reference.computing == "float32"
    assert found.comparison is not None
    assert 1e-6 < found.comparison.logps_mean < 0.05
    assert {each.module.rpartition(".")[2] for each in found.comparison.modules} >= {"q_proj", "down_proj", "norm"}
    assert all(each.cosine > 0.9 for each in found.comparison.modules)
    assert "everything is finite" in found.verdict()
    assert json.loads(json.dumps(found.to_json()))["comparison"]["modules"]


def test_what_can_not_be_repeated_is_told(tiny_policy: Policy, tmp_path: Path) -> None:
    from ascent.training.replay.replaying import replay

    output = tmp_path / "out"
    with pytest.raises(InputError, match="no such folder"):
        replay(output, 2, device=None, dtype=None)
    output.mkdir()
    with pytest.raises(InputError, match="kept no bad step 2") as told:
        replay(output, 2, device=None, dtype=None)
    assert told.value.mend == "It kept none."
    run_of(tiny_policy(), output)
    with pytest.raises(InputError) as told:
        replay(output, 3, device=None, dtype=None)
    assert told.value.mend == "Kept are: 2."
    with pytest.raises(InputError, match="has no rows of process 5"):
        replay(output, 2, device=None, dtype=None, rank=5)
    with pytest.raises(InputError, match="this machine trains on cpu"):
        replay(output, 2, device="npu", dtype=None)
    with pytest.raises(InputError, match="float16 isn't computed on CPU"):
        replay(output, 2, device="cpu", dtype="float16")
    shutil.rmtree(output / "bad-steps" / "2" / "model")
    with pytest.raises(InputError, match="the weights of step 2 were not kept"):
        replay(output, 2, device=None, dtype=None)
    (output / "bad-steps" / "2" / "step.json").write_text('{"schema": "ascent.bad_step/9"}')
    with pytest.raises(InputError, match="is not what a run writes"):
        replay(output, 2, device=None, dtype=None)


def test_modules_are_compared_by_their_gradients(tmp_path: Path) -> None:
    import torch

    from ascent.training.numerics.finding import Finding
    from ascent.training.replay import repeated
    from ascent.training.replay.comparing import compare

    def of(name: str, gradients: dict[str, list[float]], logps: list[float]) -> Any:
        repeated.save(
            tmp_path / name,
            device="cpu",
            computing="float32",
            losses=[math.nan],
            finding=Finding("nothing"),
            logps=[torch.tensor(logps)],
            gradients={each: torch.tensor(values) for each, values in gradients.items()},
        )
        return repeated.load(tmp_path / name)

    reference = of("a", {"x.weight": [3.0, 4.0], "x.bias": [0.0], "y.weight": [1.0], "z.weight": [1.0]}, [-1.0, -2.0])
    tried = of(
        "b", {"x.weight": [3.0, 4.0], "x.bias": [5.0], "y.weight": [1.0], "z.weight": [math.nan]}, [-1.5, -math.inf]
    )
    found = compare(tried, reference)
    assert [each.module for each in found.modules] == ["z", "x", "y"], "what isn't finite first"
    assert math.isnan(found.modules[0].difference)
    assert found.modules[1].difference == pytest.approx(1.0)
    assert found.modules[1].cosine == pytest.approx(25 / (5 * math.sqrt(50)))
    assert (found.modules[2].difference, found.modules[2].cosine) == (0.0, 1.0)
    assert (found.logps_mean, found.logps_max, found.logps_not_finite) == (0.5, 0.5, 1)
