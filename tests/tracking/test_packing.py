"""Small rollout files merged into one: nothing lost, nothing doubled, whatever is killed or resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ascent.errors import InputError
from ascent.tracking import packed_files, packing, run_directory
from ascent.tracking.beginning import locked
from ascent.tracking.packing import pack
from ascent.tracking.rollouts import RolloutRecord, read_rollouts, write_rollouts
from ascent.tracking.run_directory import RunDirectory, RunState

RANKS, ROWS = 2, 3


def record(generation: int, rank: int, place: int) -> RolloutRecord:
    return RolloutRecord(
        sample_id=f"run/{generation}/{rank}/{place}",
        group_id=f"run/{generation}/{rank}",
        task_id="t",
        evaluation=None,
        generation=generation,
        step=generation + 1,
        rank=rank,
        index=place,
        prompt="p",
        completion=f"c {generation}",
        program="x = 1",
        prompt_ids=[1, 2],
        completion_ids=np.arange(place + 1, dtype=np.int32),
        logps=np.zeros(place + 1, np.float32),
        finish_reason="stop",
        weight_version=generation,
        reward=0.5,
        rewards={"code": 0.5},
        parts={"tests": 1.0},
        advantage=0.0,
        compiled=True,
        outcomes=["passed", "failed"],
        error=None,
        sandbox_seconds=0.1,
        sandbox_level="none",
        kept=True,
        dropped_why=None,
        sample_seconds=0.2,
    )


def make_run(tmp_path: Path, generations: int, checkpoint: int | None, rows: int = ROWS) -> RunDirectory:
    run = run_directory.create(tmp_path, "run")
    run.config.write_text("x: 1\n")
    for generation in range(generations):
        for rank in range(RANKS):
            write_rollouts(
                run.generation_rollouts(generation, rank), [record(generation, rank, place) for place in range(rows)]
            )
        run_directory.append_json_line(run.metrics, {"step": generation + 1})
    write_rollouts(run.evaluation_rollouts(0, 0, 0), [record(0, 0, 0)])
    if checkpoint is not None:
        add_checkpoint(run, checkpoint)
    return run


def add_checkpoint(run: RunDirectory, generation: int) -> None:
    folder = run.checkpoints / f"checkpoint-{generation}"
    folder.mkdir()
    state = {"generation": generation, "micro_step": generation, "step": generation, "evaluations": 1, "files": []}
    (folder / "ascent_state.json").write_text(json.dumps(state))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["sample_id"] for row in rows]


def test_rows_are_the_same_packed(tmp_path: Path) -> None:
    run = make_run(tmp_path, 5, checkpoint=5)
    before = read_rollouts(run.rollouts)
    packed = pack(run.path)
    assert names(run.rollouts) == ["eval-000000-step000000-rank0.parquet", "packed-000000-000004.parquet"]
    assert read_rollouts(run.rollouts) == before
    assert (packed.files, packed.completions) == (10, 30)
    assert "10 files with 30 completions" in packed.to_text()
    assert "nothing to pack" in pack(run.path).to_text()
    assert read_rollouts(run.rollouts) == before


def test_generations_beyond_the_last_checkpoint_stay_small(tmp_path: Path) -> None:
    run = make_run(tmp_path, 5, checkpoint=3)
    before = read_rollouts(run.rollouts)
    pack(run.path)
    small = [f"{generation:06d}-rank{rank}.parquet" for generation in (3, 4) for rank in range(RANKS)]
    assert names(run.rollouts) == [*small, "eval-000000-step000000-rank0.parquet", "packed-000000-000002.parquet"]
    assert read_rollouts(run.rollouts) == before
    discarded = run_directory.discard_after(run, RunState(3, 3, 3))
    assert discarded is not None
    assert names(discarded) == sorted([*small, "metrics.jsonl"])
    assert ids(read_rollouts(run.rollouts)) == [each for each in ids(before) if int(each.split("/")[1]) < 3]


def test_a_later_packing_takes_in_the_earlier_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, 5, checkpoint=3)
    before = read_rollouts(run.rollouts)
    pack(run.path)
    add_checkpoint(run, 5)
    pack(run.path)
    assert names(run.rollouts)[1:] == ["packed-000000-000004.parquet"]
    assert read_rollouts(run.rollouts) == before


def test_row_groups_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_ROWS", 7)
    run = make_run(tmp_path, 4, checkpoint=4, rows=5)
    before = read_rollouts(run.rollouts)
    pack(run.path)
    metadata = pq.ParquetFile(run.rollouts / "packed-000000-000003.parquet").metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert sizes == [7, 7, 7, 7, 7, 5]
    assert read_rollouts(run.rollouts) == before


@pytest.mark.parametrize("removed", range(6))
def test_a_kill_between_leaves_what_is_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    """After the packed file stands, and after any number of the small ones are removed."""
    run = make_run(tmp_path, 3, checkpoint=3)
    before = read_rollouts(run.rollouts)
    unlink, left = Path.unlink, [removed]

    def killed(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        pack(run.path)
    monkeypatch.undo()
    assert len(names(run.rollouts)) == 8 - removed
    assert read_rollouts(run.rollouts) == before
    add_checkpoint(run, 4)
    write_rollouts(run.generation_rollouts(3, 0), [record(3, 0, 0)])
    pack(run.path)
    assert names(run.rollouts) == ["eval-000000-step000000-rank0.parquet", "packed-000000-000003.parquet"]
    assert ids(read_rollouts(run.rollouts)) == [*ids(before), "run/3/0/0"]


def test_a_resume_from_an_older_checkpoint_cuts_the_packed_file(tmp_path: Path) -> None:
    run = make_run(tmp_path, 5, checkpoint=5)
    before = read_rollouts(run.rollouts)
    pack(run.path)
    discarded = run_directory.discard_after(run, RunState(2, 2, 2))
    assert discarded is not None
    kept, beyond = read_rollouts(run.rollouts), read_rollouts(discarded / "packed-000002-000004.parquet")
    assert [*kept, *beyond] == before
    assert {row["generation"] for row in kept} == {0, 1}
    assert run_directory.discard_after(run, RunState(2, 2, 2)) is None
    again = run_directory.discard_after(run, None)
    assert again is not None
    assert ids(read_rollouts(again)) == ids(kept)
    assert not read_rollouts(run.rollouts)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_kill_while_it_is_cut_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    run = make_run(tmp_path, 4, checkpoint=4)
    before = read_rollouts(run.rollouts)
    pack(run.path)
    replace, unlink, left = os.replace, Path.unlink, [writes]

    def killed(source: Any, target: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        replace(source, target)

    def kept(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "replace", killed)
    monkeypatch.setattr(Path, "unlink", kept)
    with pytest.raises(KeyboardInterrupt):
        run_directory.discard_after(run, RunState(2, 2, 2))
    monkeypatch.undo()
    assert read_rollouts(run.rollouts) == before, "the whole file counts until it is gone"
    discarded = run_directory.discard_after(run, RunState(2, 2, 2))
    assert discarded is not None
    assert [*read_rollouts(run.rollouts), *read_rollouts(discarded / "packed-000002-000003.parquet")] == before


def test_older_schemas_are_packed_with_newer_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3, checkpoint=3)
    first = run.generation_rollouts(0, 0)
    table = pq.read_table(first)
    old = [name for name in table.column_names if name not in {"markers", "visible_tests", "evaluation"}]
    pq.write_table(table.select(old).replace_schema_metadata({"ascent.rollouts": "1"}), first)
    before = read_rollouts(run.rollouts)
    pack(run.path)
    assert read_rollouts(run.rollouts) == before
    assert pq.read_schema(run.rollouts / "packed-000000-000002.parquet").metadata[b"ascent.rollouts"] == b"3"


def test_what_cant_be_packed_is_told_and_left(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        pack(tmp_path)
    run = make_run(tmp_path, 3, checkpoint=3)
    with locked(run.path) as ours:
        assert ours
        with pytest.raises(InputError, match=r"training is at work.*\n.*when it has ended"):
            pack(run.path)
    cut = run.generation_rollouts(1, 0)
    cut.write_bytes(cut.read_bytes()[:-20])
    there = names(run.rollouts)
    with pytest.raises(InputError, match=r"can't be packed.*\n.*Nothing was removed"):
        pack(run.path)
    assert names(run.rollouts) == there


def test_without_a_checkpoint_nothing_is_packed(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3, checkpoint=None)
    assert pack(run.path).path is None
    assert len(names(run.rollouts)) == 7


def test_which_files_count() -> None:
    folder = Path("rollouts")
    listed = [
        "000000-rank0.parquet",
        "000004-rank0.parquet",
        "000004-rank1.parquet",
        "000010-rank0.parquet",
        "eval-000001-step000002-rank0.parquet",
        "packed-000000-000003.parquet",
        "packed-000000-000001.parquet",
        "packed-000005-000005.parquet",
        ".packed-000000-000009.parquet.tmp",
        "notes.parquet",
    ]
    counting = [path.name for path in packed_files.counting(folder / name for name in listed)]
    assert counting == [
        "packed-000000-000003.parquet",
        "000004-rank0.parquet",
        "000004-rank1.parquet",
        "packed-000005-000005.parquet",
        "000010-rank0.parquet",
    ]


def test_a_packed_file_that_has_to_be_cut_and_is_damaged_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, 4, checkpoint=4)
    pack(run.path)
    path = run.rollouts / "packed-000000-000003.parquet"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"both sides of the checkpoint.*\n.*Move it out"):
        run_directory.discard_after(run, RunState(2, 2, 2))
    assert path.is_file()


def test_a_report_of_what_is_moved_moves_too(tmp_path: Path) -> None:
    run = make_run(tmp_path, 4, checkpoint=4)
    run.report.write_text("<p>4 steps")
    assert run_directory.discard_after(run, RunState(4, 4, 4)) is None
    assert run.report.is_file()
    discarded = run_directory.discard_after(run, RunState(2, 2, 2))
    assert discarded is not None
    assert (discarded / "report.html").read_text() == "<p>4 steps"
    assert not run.report.exists()
