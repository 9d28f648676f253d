"""The folder of an evaluation, killed at every change of a file: nothing is judged twice, lost or counted twice."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.killer import killed_at

from ascent.errors import InputError
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.tracking.rollouts import RolloutRecord, read_rollouts
from ascent.tracking.run_directory import append_json_line, read_json_lines
from ascent.training.evaluate.folder import opened_folder

pytestmark = pytest.mark.torch  # pyarrow comes with the training packages

BATCHES = 3


def record(batch: int) -> RolloutRecord:
    return RolloutRecord(
        sample_id=f"run/eval-0-sampled/0/{batch}",
        group_id=f"eval-0-sampled-{batch}",
        task_id=f"t{batch}",
        evaluation="evaluate",
        generation=0,
        step=7,
        rank=0,
        index=0,
        prompt="p",
        completion="c",
        program="x = 1\n",
        prompt_ids=(1, 2),
        completion_ids=as_token_ids((3,)),
        logps=as_logps((-0.5,)),
        finish_reason="stop",
        weight_version=7,
        reward=1.0,
        rewards={"code_reward": 1.0},
        parts={},
        advantage=None,
        compiled=True,
        outcomes=["passed"],
        error=None,
        sandbox_seconds=0.01,
        sandbox_level="confined",
        kept=False,
        dropped_why="sampled for an evaluation",
        sample_seconds=0.2,
    )


def evaluate(path: Path, judged: list[int], **settings: Any) -> float:
    """As the command goes through a folder; `judged` gets the batches that it judges. Returns the folder's seconds."""
    with opened_folder(path, {"schema": "s", **settings}, 7) as folder:
        if folder.line is None:
            for batch in range(BATCHES):
                if not folder.whole.is_file() and not folder.part("sampled", batch).is_file():
                    judged.append(batch)
                    folder.keep("sampled", batch, [record(batch)], 2.0)
            folder.finish({"evaluation": 0, "seconds": folder.seconds()})
        line = folder.line
        assert line is not None
        return float(line["seconds"])


def test_a_kill_at_any_change_of_a_file(tmp_path: Path) -> None:
    judged: list[int] = []
    for changes in itertools.count():
        path = tmp_path / str(changes)
        judged.clear()
        cut = killed_at(path, changes, lambda path=path: evaluate(path, judged))  # type: ignore[misc]
        evaluate(path, judged)
        assert len(judged) <= BATCHES + 1, "at most the batch that was being written is judged again"
        assert set(judged) == set(range(BATCHES))
        (file,) = (path / "rollouts").iterdir()
        assert file.name == "eval-000000-step000007-rank0.parquet"
        assert [row["task_id"] for row in read_rollouts(file)] == ["t0", "t1", "t2"]
        assert len(read_json_lines(path / "evaluations.jsonl")) == 1
        assert {each.name for each in path.iterdir()} == {"evaluate.json", "evaluations.jsonl", "rollouts"}
        if not cut:
            break
    assert changes > 15


def test_seconds_are_those_of_all_starts(tmp_path: Path) -> None:
    with opened_folder(tmp_path / "out", {"schema": "s"}, 7) as folder:
        folder.keep("sampled", 0, [record(0)], 5.0)
    judged: list[int] = []
    assert evaluate(tmp_path / "out", judged) == 9.0
    assert judged == [1, 2]


def test_another_evaluation_or_anything_else_in_its_place_is_left_alone(tmp_path: Path) -> None:
    evaluate(tmp_path / "out", [])
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="holds another evaluation"):
        evaluate(tmp_path / "out", [], seed=2)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    (tmp_path / "out" / "evaluate.json").write_text("{")
    with pytest.raises(InputError, match="is not what an evaluation writes"):
        evaluate(tmp_path / "out", [])
    append_json_line(tmp_path / "notes.jsonl", {})
    with pytest.raises(InputError, match="is no evaluation"):
        evaluate(tmp_path, [])
    with pytest.raises(InputError, match="can't be written"):
        evaluate(tmp_path / "notes.jsonl" / "out", [])
