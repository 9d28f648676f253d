"""The power that a device draws."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.environment.npu_tables import ddr_table, hbm_table

from ascent.bench.power import PowerMeter
from ascent.environment.npu_smi import parse
from ascent.environment.power import device_watts

CARDS = hbm_table(
    [
        (0, "910B3", "OK", 0, None, "0000:C1:00.0", 0, 3000, 65536),
        (1, "910B3", "OK", 0, None, "0000:C2:00.0", 0, 3000, 65536),
    ]
).replace("95.1 ", "88.4 ", 1)


def runner(answers: dict[str, tuple[int, str]], asked: list[Sequence[str]] | None = None):  # type: ignore[no-untyped-def]
    def run(command: Sequence[str], seconds: float) -> tuple[int, str] | None:
        if asked is not None:
            asked.append(command)
        return answers.get(Path(command[0]).name)

    return run


@pytest.fixture
def with_npu_smi(tmp_path: Path) -> Path:
    program = tmp_path / "usr/local/bin/npu-smi"
    program.parent.mkdir(parents=True)
    program.touch()
    return tmp_path


def test_a_table_of_cards_tells_their_power() -> None:
    assert [each.power_watts for each in parse(CARDS).devices] == [88.4, 95.1]
    inference = ddr_table([(0, "310P3", "OK", 0, 0, "0000:01:00.0", 0, 1000, 21527)])
    assert [each.power_watts for each in parse(inference).devices] == [None]  # NA


@pytest.mark.parametrize(("visible", "watts"), [(None, 88.4), ("1", 95.1), ("1,0", 95.1), ("7", None)])
def test_it_is_of_the_first_visible_card(visible: str | None, watts: float | None, with_npu_smi: Path) -> None:
    variables = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    run = runner({"npu-smi": (0, CARDS)})
    assert device_watts(run, variables, with_npu_smi) == watts


@pytest.mark.parametrize(
    ("answer", "watts"),
    [((0, "312.55\n"), 312.55), ((0, "[N/A]\n"), None), ((0, "[Not Supported]\n"), None), ((9, "no devices"), None)],
)
def test_nvidia_smi_is_asked_where_there_is_no_npu(
    answer: tuple[int, str], watts: float | None, tmp_path: Path
) -> None:
    asked: list[Sequence[str]] = []
    run = runner({"nvidia-smi": answer}, asked)
    assert device_watts(run, {"CUDA_VISIBLE_DEVICES": "GPU-8932f937,1"}, tmp_path) == watts
    assert "--id=GPU-8932f937" in asked[-1]


def test_nobody_says_it_here(tmp_path: Path) -> None:
    assert device_watts(runner({}), {}, tmp_path) is None


def test_the_mean_of_what_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascent.bench.power._EVERY", 0.01)
    told = iter([100.0, 200.0])
    with PowerMeter(lambda: next(told, None)) as meter:
        time.sleep(0.2)
    assert meter.mean == 150.0


def test_a_device_that_tells_nothing_has_no_mean() -> None:
    with PowerMeter(None) as meter:
        pass
    assert meter.mean is None
