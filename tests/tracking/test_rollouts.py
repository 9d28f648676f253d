"""Rollout files: what is written comes back, and the schema is the documented one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.tracking.rollouts import SCHEMA_VERSION, RolloutRecord, read_rollouts, schema, version_of, write_rollouts

pytestmark = pytest.mark.torch  # pyarrow comes with the training packages


NEW_IN_3 = ("trainer_logps", "visible_tests", "audit_outcomes", "markers", "signal", "weight_spans")


def record(**changes: Any) -> RolloutRecord:
    fields: dict[str, Any] = {
        "sample_id": "run/0/0/0",
        "group_id": "0-0",
        "task_id": "t",
        "evaluation": None,
        "generation": 0,
        "step": 1,
        "rank": 0,
        "index": 0,
        "prompt": "p",
        "completion": "c\ud83d".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
        "program": "x = 1\n",
        "prompt_ids": (1, 2),
        "completion_ids": as_token_ids((3,)),
        "logps": as_logps((-0.5,)),
        "finish_reason": "stop",
        "weight_version": 0,
        "reward": 0.5,
        "rewards": {"code_reward": 0.5, "other": None},
        "parts": {"compile": 0.1, "tests": 0.4},
        "advantage": None,
        "compiled": True,
        "outcomes": ["passed", "failed"],
        "error": None,
        "sandbox_seconds": 0.01,
        "sandbox_level": "confined",
        "kept": True,
        "dropped_why": None,
        "sample_seconds": 0.2,
        **changes,
    }
    return RolloutRecord(**fields)


def test_written_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "000000-rank0.parquet"
    other = record(sample_id="run/0/0/1", reward=None, kept=False, compiled=None, weight_spans=((0, 3), (40, 4)))
    write_rollouts(path, [record(), other])
    first, second = read_rollouts(path)
    assert first["rewards"] == {"code_reward": 0.5, "other": None}
    assert first["parts"] == {"compile": 0.1, "tests": 0.4}
    assert first["completion_ids"] == [3]
    assert first["outcomes"] == ["passed", "failed"]
    assert [first[name] for name in NEW_IN_3] == [None] * 6
    assert second["reward"] is None
    assert first["weight_spans"] is None
    assert second["weight_spans"] == [{"start": 0, "version": 3}, {"start": 40, "version": 4}]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_file_is_what_pyarrow_makes_of_plain_rows(tmp_path: Path) -> None:
    """Columns are made without a dict for each record; types, names of fields and values are as if there were."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids, logps = as_token_ids(range(50)), as_logps([None, -math.inf, *[-0.25] * 48])
    records = [
        record(),
        record(completion_ids=ids, logps=logps, parts={}, outcomes=[]),
        record(prompt_ids=(), completion_ids=as_token_ids(()), logps=as_logps(()), rewards={"a": None}),
        record(
            trainer_logps=logps[:2],
            visible_tests=1,
            audit_outcomes=["failed"],
            markers=[],
            signal=False,
            weight_spans=[(0, 3), (7, 4)],
        ),
        record(trainer_logps=as_logps(()), audit_outcomes=[], markers=["exit", "reads"], signal=True, weight_spans=[]),
    ]
    for number, some in enumerate((records, [])):
        write_rollouts(tmp_path / f"{number}.parquet", some)
        rows = [{field.name: getattr(each, field.name) for field in schema()} for each in some]
        for row in rows:
            row |= {name: list(row[name].items()) for name in ("rewards", "parts")}
            row |= {name: list(row[name]) for name in ("prompt_ids", "completion_ids", "logps")}
            row["trainer_logps"] = None if row["trainer_logps"] is None else list(row["trainer_logps"])
            spans = row["weight_spans"]
            row["weight_spans"] = None if spans is None else [{"start": at, "version": each} for at, each in spans]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema()), tmp_path / "plain.parquet", compression="zstd")
        written, plain = pq.read_table(tmp_path / f"{number}.parquet"), pq.read_table(tmp_path / "plain.parquet")
        assert written.schema.equals(plain.schema, check_metadata=True)
        assert str(written.to_pylist()) == str(plain.to_pylist()), "as text, in which NaN equals NaN"


def test_a_folder_is_read_in_order_without_evaluation(tmp_path: Path) -> None:
    for generation in (1, 0):
        name = f"{generation:06d}-rank0.parquet"
        write_rollouts(tmp_path / name, [record(generation=generation)])
    write_rollouts(tmp_path / "eval-000000-step000000-rank0.parquet", [record(evaluation="before")])
    assert [row["generation"] for row in read_rollouts(tmp_path)] == [0, 1]


def test_the_schema_is_versioned_and_documented() -> None:
    assert schema().metadata == {b"ascent.rollouts": str(SCHEMA_VERSION).encode()}
    page = (Path(__file__).resolve().parents[2] / "docs" / "run-directory.md").read_text(encoding="utf-8")
    missing = [field.name for field in schema() if f"| `{field.name}` | {field.type} |" not in page]
    assert not missing, f"docs/run-directory.md does not describe {missing}"


def older(path: Path, version: int) -> None:
    """What a release with this schema version wrote."""
    import pyarrow.parquet as pq

    write_rollouts(path, [record(), record(reward=None)])
    gone = [*NEW_IN_3, *(["evaluation"] if version < 2 else [])]
    table = pq.read_table(path).drop_columns(gone)
    pq.write_table(table.replace_schema_metadata({"ascent.rollouts": str(version)}), path)


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_earlier_releases_have_all_columns(tmp_path: Path, version: int) -> None:
    path = tmp_path / "000000-rank0.parquet"
    older(path, version)
    assert version_of(path) == version
    first, second = read_rollouts(path)
    assert set(first) == set(schema().names)
    assert all(first[name] is None for name in NEW_IN_3)
    assert (first["reward"], second["reward"]) == (0.5, None)


def test_a_file_of_a_later_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "000000-rank0.parquet"
    older(path, SCHEMA_VERSION + 1)
    with pytest.raises(InputError, match=f"schema version {SCHEMA_VERSION + 1} .* up to {SCHEMA_VERSION}"):
        read_rollouts(path)


@pytest.mark.parametrize("content", [b"", b"PAR1 cut", None])
def test_what_is_no_rollout_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "000000-rank0.parquet"
    if content is None:
        pq.write_table(pa.table({"a": [1]}), path)
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match="is not a rollout file"):
        version_of(path)
