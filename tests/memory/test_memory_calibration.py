"""Corrections by what was measured, and what is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ascent.errors import InputError
from ascent.memory import Batch, Engine, Phase, Settings, Trained, card, measured, plan
from ascent.memory import calibration as calibrations
from ascent.memory.asked import asked, calibrate
from ascent.memory.calibration import Calibration, Measured, fit
from ascent.memory.pressure import Pressure

LORA = Settings(Trained(dtype="bfloat16", lora=16), Batch(), Engine(share=0.45))
GIB = 2**30


def runs(activations: float, logits: float) -> list[Measured]:
    """Phases of which the truth is the plan's terms times these factors."""
    planned = [(100, 400, 50), (100, 50, 300), (10, 80, 80), (500, 20, 10)]
    return [
        Measured(
            Phase("training", {"weights": w, "activations": a, "logits": lo}), int(w + a * activations + lo * logits)
        )
        for w, a, lo in planned
    ]


def test_factors_are_found() -> None:
    found = fit("here", runs(1.3, 0.8))
    assert found.factors["activations"] == pytest.approx(1.3, abs=0.02)
    assert found.factors["logits"] == pytest.approx(0.8, abs=0.02)
    assert "weights" not in found.factors  # counted, not estimated
    corrected = found.corrected([run.planned for run in runs(1.3, 0.8)])
    for phase, run in zip(corrected, runs(1.3, 0.8), strict=True):
        assert phase.total == pytest.approx(run.peak, rel=0.02)
    assert max(found.spread) <= 0.02


def test_what_no_factor_explains_is_left_as_error() -> None:
    wild = [*runs(1.0, 1.0), Measured(Phase("training", {"activations": 100}), 150)]
    found = fit("here", wild)
    over, under = found.spread
    assert under > 0.1 or over > 0.1
    with pytest.raises(InputError, match="nothing was measured"):
        fit("here", [])


def test_a_calibration_corrects_a_plan_and_narrows_its_error(tmp_path: Path) -> None:
    usual = plan("Qwen/Qwen2.5-7B-Instruct", "910B3", LORA)
    found = Calibration("here", {"activations": 1.5}, (0.03, 0.04), 5)
    made = plan("Qwen/Qwen2.5-7B-Instruct", "910B3", LORA, calibration=found)
    before, after = usual.phase("training").terms, made.phase("training").terms
    assert after["activations"] == pytest.approx(1.5 * before["activations"], rel=1e-6)
    assert after["weights"] == before["weights"]
    assert made.errors["activations"] == (0.03, 0.04)
    assert made.to_json()["calibrated"] == "here"
    file = tmp_path / "some" / "calibration.json"
    found.write(file)
    assert calibrations.read(file) == found


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": "other/1"}',
        json.dumps({"schema": calibrations.SCHEMA, "factors": {"weights": 1.0}, "spread": [0.1, 0.1]}),
        json.dumps({"schema": calibrations.SCHEMA, "factors": {"logits": 50.0}, "spread": [0.1, 0.1]}),
        json.dumps({"schema": calibrations.SCHEMA, "factors": {"logits": 1.0}, "spread": [0.1]}),
    ],
)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError, match="calibration"):
        calibrations.read(file)


def test_a_runs_memory_is_written_compared_and_calibrates(tmp_path: Path) -> None:
    made = plan("Qwen/Qwen2.5-7B-Instruct", "910B3", LORA)
    training = made.phase("training").terms
    of_allocator = sum(size for term, size in training.items() if term not in ("reserve", "communication"))
    peaks = {"update": {"allocated": int(of_allocator / 1.1), "reserved": of_allocator}}
    measured.write(tmp_path, made, peaks, [{"name": "n", "what": "w", "mend": "m"}])
    kept = measured.read(tmp_path)
    assert kept is not None
    assert kept["compared"][0]["phase"] == "training"
    assert kept["compared"][0]["off"] == pytest.approx(0.1, abs=0.001)
    assert kept["findings"] == [{"name": "n", "what": "w", "mend": "m"}]
    found = measured.measured_phases(tmp_path)
    assert [each.peak for each in found] == [peaks["update"]["allocated"]]
    assert fit("here", found).factors["activations"] < 1
    assert measured.read(tmp_path / "nowhere") is None
    (tmp_path / measured.FILE).write_text('{"schema": "no"}', "utf-8")
    with pytest.raises(InputError, match="not a run's memory"):
        measured.read(tmp_path)


def run_of(folder: Path, device: str) -> Path:
    """A run directory with a memory.json, whose training took 1.1 times what was planned."""
    made = plan("Qwen/Qwen2.5-7B-Instruct", device, replace(LORA, trained=replace(LORA.trained, autocast=False)))
    training = made.phase("training").terms
    taken = int(1.1 * sum(size for term, size in training.items() if term not in ("reserve", "communication")))
    folder.mkdir()
    measured.write(folder, made, {"update": {"allocated": taken, "reserved": taken}}, [])
    return folder


def test_runs_calibrate_the_card_that_they_ran_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said = calibrate([run_of(tmp_path / "one", "910B3")], None)
    assert "from 1 phases: activations x" in said
    assert calibrations.of_this_machine("Ascend 910B3") is not None
    assert calibrations.of_this_machine("NVIDIA H100 80GB") is None
    notes = asked("Qwen/Qwen2.5-7B-Instruct", device="910B3").notes
    assert any("corrected by what was measured" in note for note in notes)
    assert not any("corrected" in note for note in asked("Qwen/Qwen2.5-7B-Instruct", device="H100").notes)


def test_runs_that_cannot_calibrate_are_refused(tmp_path: Path) -> None:
    one, other = run_of(tmp_path / "one", "910B3"), run_of(tmp_path / "other", "H100")
    with pytest.raises(InputError, match="of several devices: Ascend 910B3, NVIDIA H100 80GB"):
        calibrate([one, other], tmp_path / "c.json")
    with pytest.raises(InputError, match="are of a CPU"):
        calibrate([run_of(tmp_path / "third", "cpu:64GB")], tmp_path / "c.json")
    with pytest.raises(InputError, match="none with a plan and measured peaks"):
        calibrate([tmp_path], tmp_path / "c.json")


# ---- pressure -------------------------------------------------------------------------------------------------------


def pressure(kind: str = "npu", *, sleeps: bool = False, **environment: str) -> Pressure:
    return Pressure(kind, sleeps, environment)


def test_a_quiet_run_has_no_findings() -> None:
    calm = pressure()
    for _ in range(20):
        assert calm.step(allocated=20 * GIB, reserved=21 * GIB, total=61 * GIB, cache_use=0.7) == []


def test_fragmentation_is_told_once_with_advice_that_fits_the_run() -> None:
    parts = {"allocated": 20 * GIB, "reserved": 30 * GIB, "total": 61 * GIB}
    usual = pressure()
    (found,) = usual.step(**parts)
    assert found.name == "fragmentation"
    assert "Set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True (not together with memory.engine_sleep)" in found.mend
    assert usual.step(**parts) == []
    (asleep,) = pressure(sleeps=True, PYTORCH_NPU_ALLOC_CONF="expandable_segments:True").step(**parts)
    assert asleep.mend.startswith("Not with PYTORCH_NPU_ALLOC_CONF=expandable_segments:True")
    assert "take it out" in asleep.mend
    (on_cuda,) = pressure("cuda", PYTORCH_CUDA_ALLOC_CONF="expandable_segments: True").step(**parts)
    assert "is on already" in on_cuda.mend
    assert pressure("cpu").step(**parts) == []


def test_growth_full_device_preemptions_and_an_idle_cache_are_told() -> None:
    growing = pressure()
    names = [
        each.name
        for step in range(8)
        for each in growing.step(allocated=(10 + step) * GIB, reserved=(10 + step) * GIB, total=61 * GIB)
    ]
    assert names == ["growth"]
    (full,) = pressure().step(allocated=60 * GIB, reserved=60 * GIB, total=61 * GIB)
    assert full.name == "nearly full"
    (thrown,) = pressure("cpu").step(allocated=1, reserved=1, total=10, preemptions=3, cache_use=0.99)
    assert (thrown.name, "3 times" in thrown.what) == ("preemptions", True)
    idle = pressure("cpu")
    told = [each.name for _ in range(6) for each in idle.step(allocated=1, reserved=1, total=10, cache_use=0.1)]
    assert told == ["idle cache"]


def test_no_share_beyond_what_the_card_has(tmp_path: Path) -> None:
    del tmp_path
    small = replace(card("910B4"), usable=2 * GIB)
    made = plan("Qwen/Qwen2.5-7B-Instruct", small, LORA)
    assert made.verdict == "no"
    assert made.engine.short > 0
