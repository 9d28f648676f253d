"""The file of a record: what is written is read, and nothing else passes for it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.regress.made_records import a_record, a_run, prompt_run

from ascent.bench.regress.measure import FIGURES, SampledFigure
from ascent.bench.regress.plan import SAMPLINGS
from ascent.bench.regress.record import SCHEMA, Record, read, write
from ascent.errors import InputError


def written(tmp_path: Path, record: Record | None = None) -> Path:
    file = tmp_path / "record.jsonl"
    write(record or a_record(), file)
    return file


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = a_record()
    file = written(tmp_path, record)
    assert read(file) == record
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_readable_and_one_line_a_prompt(tmp_path: Path) -> None:
    lines = written(tmp_path).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 24 + 2
    assert json.loads(lines[0])["schema"] == SCHEMA
    assert json.loads(lines[3])["text"] == "text 2"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("record")).read_bytes()


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_part_of_a_record_is_none(content: bytes, tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    cut = content[: int(share * (len(content) - 1))]
    file = tmp_path_factory.getbasetemp() / "cut.jsonl"
    file.write_bytes(cut)
    with pytest.raises(InputError) as refused:
        read(file)
    first_line = len(content.split(b"\n")[0])
    said = "the record was cut off" if len(cut) >= first_line else "not a record of ascent regress"
    assert said in str(refused.value)


def test_a_line_that_is_missing_or_edited_is_found(tmp_path: Path, content: bytes) -> None:
    lines = content.decode().split("\n")
    file = tmp_path / "record.jsonl"
    file.write_text("\n".join(lines[:5] + lines[6:]), encoding="utf-8")
    with pytest.raises(InputError, match="cut off"):
        read(file)
    file.write_text(content.decode().replace("text 3", "text 4"), encoding="utf-8")
    with pytest.raises(InputError, match="not what was recorded"):
        read(file)


def test_other_line_ends_are_the_same_record(tmp_path: Path, content: bytes) -> None:
    """As version control may write them."""
    file = tmp_path / "record.jsonl"
    file.write_bytes(content.replace(b"\n", b"\r\n"))
    assert read(file) == a_record()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a record of ascent regress"),
        ("[1, 2]\n", "not a record of ascent regress"),
        ('{"schema": "ascent.plan/1"}\n', "not a record of ascent regress"),
        ('{"schema": 1}\n', "not a record of ascent regress"),
        (
            '{"schema": "ascent.regress-record/9"}\n',
            "its schema is ascent.regress-record/9, this version of Ascent reads",
        ),
    ],
)
def test_other_files(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read(file)
    assert said in str(refused.value)


def test_files_that_can_t_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "weights").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(InputError, match="not UTF-8"):
        read(tmp_path / "weights")
    with pytest.raises(InputError, match="can't be written"):
        write(a_record(), tmp_path / "no-such-folder" / "record.jsonl")


def sealed(lines: list[str]) -> str:
    """With a right end, as one who edits on purpose would make it."""
    from ascent.bench.regress.record import _digest

    body = "".join(f"{line}\n" for line in lines)
    return body + json.dumps({"prompts": len(lines) - 1, "digest": _digest(body)}) + "\n"


@pytest.mark.parametrize(
    "change",
    [
        {"logps": [0.0]},
        {"logps": "none"},
        {"greedy": []},
        {"rivals": None},
        {"prompt_ids": ["a"]},
        {"id": "p\x1b[2J"},
        {"sampled": {"temperature 0.7": 3}},
    ],
)
def test_content_that_does_not_fit_is_refused(change: dict[str, object], tmp_path: Path, content: bytes) -> None:
    lines = content.decode().split("\n")[:-2]
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    file = tmp_path / "record.jsonl"
    file.write_text(sealed(lines), encoding="utf-8")
    with pytest.raises(InputError, match="not what ascent"):
        read(file)


def test_an_engine_that_gives_no_numbers_is_not_recorded(tmp_path: Path) -> None:
    broken = prompt_run(logps=((math.nan,) * 6,) * 3)
    with pytest.raises(InputError, match="prompt p1: the engine gives log-probabilities that are not finite"):
        write(a_record([a_run([prompt_run(), broken])]), tmp_path / "record.jsonl")
    silent = prompt_run(sampled=sampled_nothing())
    with pytest.raises(InputError, match="prompt p0: the engine gives"):
        write(a_record([a_run([silent])]), tmp_path / "record.jsonl")
    assert not list(tmp_path.iterdir())


def sampled_nothing() -> dict[str, dict[str, SampledFigure]]:
    return {setting: dict.fromkeys(FIGURES, SampledFigure(math.nan, 0.0)) for setting in SAMPLINGS}
