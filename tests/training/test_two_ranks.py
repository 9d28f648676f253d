"""Two training processes over gloo whose engine fails on one of them: both end alike, soon, with the last step kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def endings(tiny_policy: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """scenario -> how it ended on rank 0 and on rank 1."""
    folder = tmp_path_factory.mktemp("two-ranks")
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "XDG_RUNTIME_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*command, str(tiny_policy()), str(folder)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    files = sorted(folder.glob("*-[01].json"))
    found: dict[str, list[Any]] = {}
    for file in files:
        found.setdefault(file.stem.rpartition("-")[0], []).append(json.loads(file.read_text()))
    assert all(len(ranks) == 2 for ranks in found.values())
    return found


@pytest.mark.parametrize(
    ("scenario", "kinds", "words", "step"),
    [
        ("dies", ["EngineLostError", "EngineLostError"], "was killed by SIGKILL", 2),
        ("missing", ["ModuleNotFoundError", "OtherRankError"], "No module named 'vllm_ascend'", 1),
        ("taken", ["EngineLostError", "EngineLostError"], "held by thief", 2),
        ("unfit", ["InputError", "InputError"], "needs a training of one process, not 2", None),
    ],
)
def test_both_ranks_end_alike(
    endings: dict[str, list[Any]], scenario: str, kinds: list[str], words: str, step: int | None
) -> None:
    first, second = endings[scenario]
    assert first["message"] == second["message"]
    assert words in first["message"]
    assert [first["kind"], second["kind"]] == kinds
    assert abs(first["at"] - second["at"]) < 20, "one rank waited for the other"
    if step is not None:
        for ending in (first, second):
            assert ending["agreed"]
            assert (ending["step"], ending["kept"]) == (step, True), "the last whole step is kept"


def test_ranks_that_replace_different_numbers_of_groups_go_on_together(endings: dict[str, list[Any]]) -> None:
    """Each fills its own part; what both drew makes whole passes over the dataset, and a resumed run draws the same."""
    first, second = endings["drawn"]
    metrics = first["metrics"]
    assert [step["frac_reward_zero_std"] for step in metrics] == [0, 0, 0, 0]
    assert len({len(rank["groups"]) for rank in (first, second)}) == 2, "both drew as many"
    drawn = sum(step["sampling/groups_drawn"] for step in metrics)
    assert drawn * 4 == sum(len(rank["groups"]) for rank in (first, second))
    assert not {group for group, *_ in first["groups"]} & {group for group, *_ in second["groups"]}
    for rank in (first, second):
        assert sum(kept for _, _, kept, _ in rank["groups"]) == 4 * 8
        begins = [int(group.split("-")[0]) for group, *_ in rank["groups"]]
        assert rank["resumed"] == [each for each, begin in zip(rank["groups"], begins, strict=True) if begin >= 2]


def test_each_rank_closes_its_generations_by_itself(endings: dict[str, list[Any]]) -> None:
    first, second = endings["late"]
    assert not {group for group, *_ in first["whole"]} & {group for group, *_ in second["whole"]}
    late = []
    for rank in (first, second):
        assert len(rank["whole"]) == 6 * 8
        assert all(kept for _, _, _, kept, _ in rank["whole"])
        assert rank["resumed"] == [each for each in rank["whole"] if each[2] >= 3]
        late.append({group for group, _, number, *_ in rank["whole"] if int(group.split("-")[0]) < number})
    assert any(late), "nothing was carried over"


def test_a_reward_that_fails_on_one_rank_ends_both(endings: dict[str, list[Any]]) -> None:
    first, second = endings["reward-fails"]
    assert first["message"] == second["message"]
    assert "ValueError: not here" in first["message"]
    assert first["agreed"]
    assert second["agreed"]


def test_signals_are_of_all_ranks_also_where_a_group_is_spread(endings: dict[str, list[Any]]) -> None:
    first, second = endings["recorded"]
    assert not second["steps"], "rank 0 tells"
    assert len(first["steps"]) == 2
    groups = [{group for group, *_ in rank["completions"]} for rank in (first, second)]
    assert groups[0] & groups[1], "a group is on both"
    for number, (metrics, columns) in enumerate(first["steps"]):
        rows = [row for rank in (first, second) for row in rank["completions"] if row[0].startswith(f"{number}-")]
        named = sorted({group for group, *_ in rows}, key=lambda group: int(group.split("-")[1]))
        assert len(rows) == metrics["signals/completions"] == 12
        assert metrics["signals/groups"] == len(named) == 3
        assert columns["completions"] == [4, 4, 4]
        by_group = [[row for row in rows if row[0] == group] for group in named]
        assert columns["reward"] == pytest.approx([sum(row[1] for row in group) for group in by_group])
        assert columns["signal"] == [int(len({row[1] for row in group}) > 1) for group in by_group]
        assert columns["signal"] == [int(group[0][2]) for group in by_group]
        assert metrics["signals/mean_length"] == pytest.approx(sum(row[3] for row in rows) / 12)


def test_the_trainer_s_log_probabilities_come_back_to_the_rank_that_sampled(endings: dict[str, list[Any]]) -> None:
    for ending in endings["moved"]:
        assert len(ending["differences"]) >= 4
        assert max(ending["differences"]) < 1e-5
        assert not any(ending["silent"]), "what isn't computed has no advantage"
        assert len(ending["differences"]) + len(ending["silent"]) == 16
    first, second = (len(ending["differences"]) for ending in endings["moved"])
    assert abs(first - second) > 4, "one rank computed what the other one sampled"


def test_groups_that_are_spread_over_ranks_are_refused(endings: dict[str, list[Any]]) -> None:
    for ending in endings["spread"]:
        assert "2 completions of a generation" in ending["message"]
        assert "not whole groups of 4" in ending["message"]


def test_collectives_are_timed_with_the_waiting_for_a_later_rank(endings: dict[str, list[Any]]) -> None:
    first, second = endings["timed"]
    for rank in (first, second):
        assert rank["gathered"] == [0, 1]
        assert rank["nothing"] == {"gradients": 0.0, "gathers": 0.0}
        assert rank["before"]
        assert rank["again"], "a backward pass is told once"
        assert rank["other"]
        assert rank["restored"]
    assert first["gather"]["gathers"] > 0.3 > second["gather"]["gathers"] > 0
    assert first["ddp"][1] > 0.3, "nothing of the waiting is hidden by computing"
    assert first["ddp"][0] >= first["ddp"][1]
    assert second["ddp"][0] < 0.3
    assert first["fsdp"]["gradients"] > 0.3 > second["fsdp"]["gradients"] > 0


def test_a_step_tells_how_much_of_it_was_communication(endings: dict[str, list[Any]]) -> None:
    first, second = endings["waited"]
    assert len(first["steps"]) == 2
    assert not second["steps"], "rank 0 tells"
    for seconds, metrics in first["steps"]:
        gathers, exposed = metrics["communication/gathers"], metrics["communication/gradients_exposed"]
        assert 0.3 < gathers < seconds
        assert 0 < exposed <= metrics["communication/gradients"] < seconds
        assert "communication/weights" not in metrics, "each process has an engine of its own"
        assert metrics["communication/share"] == pytest.approx((gathers + exposed) / seconds)
