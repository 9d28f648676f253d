"""`ascent regress` with transformers and a tiny policy: quiet without a change, and each planted one is told."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascent.bench.regress.command import Now, compare_files, compare_now, record_model
from ascent.bench.regress.compare import Comparison
from ascent.bench.regress.engines import LocalSubject, opened
from ascent.bench.regress.measure import Job, Run, measure, measure_here
from ascent.bench.regress.plan import Asked
from ascent.bench.regress.record import read, write
from ascent.bench.regress.subject import EngineChoice, parse_engine
from ascent.cli import main
from ascent.errors import InputError
from ascent.types import Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
NOW = Now({"device": "this one"}, repeat=1, measure_one=measure_here)
ASKED = Asked(greedy_tokens=6, sampled_tokens=8, samples=8)


@pytest.fixture(scope="module")
def model(tiny_policy: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy that is surer of its tokens than a random one: by its last norm."""
    folder = tmp_path_factory.mktemp("regress") / "model"
    shutil.copytree(tiny_policy(tied=False), folder)
    change_weights(folder, "model.norm.weight", lambda weight: weight * 4)
    return folder


def change_weights(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Write the weights again with one of them changed."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, file, {"format": "pt"})


@pytest.fixture(scope="module")
def record(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("record") / "record.jsonl"
    record_model(str(model), file, parse_engine("transformers"), NOW, asked=ASKED)
    return file


def now(record: Path, measure_one: Callable[[Job], Run], **settings: Any) -> Comparison:
    return compare_now(record, None, None, replace(NOW, measure_one=measure_one), **settings).comparison


def test_small_enough_for_a_repository(record: Path) -> None:
    assert record.stat().st_size < 200_000
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").split("\n") if line]
    assert len(lines) == 33 + 2, "the long prompts don't fit"
    assert lines[0]["left_out"] == ["long-log", "long-module", "long-tale"]
    assert "".join(lines[1]["greedy"][0]["pieces"])


def test_the_same_again_is_equal(record: Path) -> None:
    found = now(record, measure_here)
    assert found.verdict == "equal"
    assert max(each.largest for each in found.prompts) == 0


def test_other_samples_raise_no_alarm(record: Path) -> None:
    """As when a new version draws otherwise."""
    found = now(record, lambda job: measure_here(replace(job, number=1000)))
    assert found.verdict == "within tolerance"
    assert {each.verdict for each in found.prompts} == {"equal"}


def through(change: Callable[[Any], None]) -> Callable[[Job], Run]:
    """Measured after something was done to transformers' model."""

    def measured(job: Job) -> Run:
        with opened(job.choice, job.folder) as subject:
            assert isinstance(subject, LocalSubject)
            with subject._engine._model() as model:  # type: ignore[attr-defined]
                change(model)
            return measure(subject, job.questions, job.asked, job.number)

    return measured


def test_one_number_of_one_weight(record: Path) -> None:
    def change(model: Any) -> None:
        model.model.layers[0].mlp.down_proj.weight.data[3, 5] += 0.01

    found = now(record, through(change))
    assert found.verdict == "changed"
    assert sum(each.verdict == "changed" for each in found.prompts) > 20


def test_another_dtype(record: Path) -> None:
    """Of the engine, though its record and its configuration say float32."""
    found = now(record, lambda job: measure_here(replace(job, choice=replace(job.choice, dtype="bfloat16"))))
    assert found.verdict == "changed"


class Losing:
    """A Subject that takes sampling settings for others."""

    def __init__(self, subject: Any, change: Callable[[Sampling], Sampling]) -> None:
        self._subject, self._change = subject, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def sample(self, requests: Any) -> Any:
        return self._subject.sample([replace(each, sampling=self._change(each.sampling)) for each in requests])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("temperature 0.7", lambda asked: replace(asked, temperature=1.0) if asked.temperature else asked),
        ("top-p 0.7", lambda asked: replace(asked, top_p=1.0)),
    ],
)
def test_a_sampling_setting_that_is_lost(record: Path, name: str, change: Callable[[Sampling], Sampling]) -> None:
    def measured(job: Job) -> Run:
        with opened(job.choice, job.folder) as subject:
            return measure(Losing(subject, change), job.questions, job.asked, job.number)

    found = now(record, measured)
    assert {each.verdict for each in found.prompts} == {"equal"}
    assert {each.setting for each in found.sampled if each.verdict == "changed"} == {name}


def test_a_tokenizer_that_changed(record: Path, model: Path, tmp_path: Path) -> None:
    """The weights are the recorded ones, so it is the same model; its outputs for the recorded tokens are equal."""
    other = tmp_path / "model"
    shutil.copytree(model, other)
    file = other / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["merges"] = content["model"]["merges"][1:]
    file.write_text(json.dumps(content), encoding="utf-8")
    found = compare_now(record, str(other), None, NOW).comparison
    assert found.verdict == "changed"
    told = [each for each in found.prompts if each.verdict == "changed"]
    assert all("the tokenizer makes other tokens" in each.why[0] for each in told)
    assert max(each.largest for each in found.prompts) == 0


def test_another_model_is_refused_unless_it_is_meant(record: Path, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "model"
    shutil.copytree(model, other)
    change_weights(other, "lm_head.weight", lambda weight: weight * 1.1)
    with pytest.raises(InputError, match="is a record of another model"):
        compare_now(record, str(other), None, NOW)
    assert now_other(record, other).verdict == "changed"
    second = tmp_path / "second.jsonl"
    record_model(str(other), second, parse_engine("transformers"), NOW, asked=ASKED)
    with pytest.raises(InputError, match="is a record of another model"):
        compare_files(record, second)
    assert compare_files(record, second, other_weights=True).comparison.verdict == "changed"
    assert compare_files(record, record).comparison.verdict == "equal"


def now_other(record: Path, other: Path) -> Comparison:
    return compare_now(record, str(other), None, NOW, other_weights=True).comparison


def test_from_the_command_line(
    ascent: Callable[..., subprocess.CompletedProcess[str]], model: Path, record: Path, tmp_path: Path
) -> None:
    """Each run in a process of its own: a record of this process's runs is equal to what that gives."""
    done = ascent("regress", "compare", record, "--repeat", 1, "--ignore", "speed", "memory", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "ascent.regress/1"
    assert found["verdict"] == "equal"
    assert "run 1 of 1: the engine starts" in done.stderr
    assert found["new"]["environment"]["torch"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["regress", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_what_can_t_be_asked(record: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(record.read_bytes()[:5000])
    out = tmp_path / "out.jsonl"
    assert "the record was cut off" in refused(capsys, "compare", cut)
    assert "can't be read" in refused(capsys, "compare", tmp_path / "none.jsonl")
    assert "no service named 'nobody' is running" in refused(capsys, "compare", record, "--engine", "service:nobody")
    assert "expected colocated, transformers, or service:NAME" in refused(capsys, "compare", record, "--engine", "trt")
    assert "expected colocated" in refused(capsys, "record", model, "--out", out, "--engine", "service:")
    assert "--repeat 0: expected at least 1" in refused(capsys, "record", model, "--out", out, "--repeat", 0)
    assert "there is no folder" in refused(capsys, "record", model, "--out", tmp_path / "no" / "out")
    assert "no such folder" in refused(capsys, "record", tmp_path / "no" / "model", "--out", out)
    assert "compared as they are" in refused(capsys, "compare", record, record, "--engine", "transformers")
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"id": "a", "text": "b" * 400, "continuation": "c"}))
    arguments = ("record", model, "--out", out, "--engine", "transformers", "--prompts", few)
    assert "none of 1 prompts fits into the context of 256 tokens" in refused(capsys, *arguments)
    assert not out.exists()


def test_a_record_is_trusted_with_nothing(record: Path, tmp_path: Path) -> None:
    """It may come from anyone: neither code of a model runs, nor does a key go to an address, because it says so."""
    old = read(record)
    seen: list[Job] = []

    def measured(job: Job) -> Run:
        seen.append(job)
        return measure_here(job)

    trusting = tmp_path / "trusting.jsonl"
    write(replace(old, head=replace(old.head, engine=replace(old.head.engine, trust_remote_code=True))), trusting)
    compare_now(trusting, None, None, replace(NOW, measure_one=measured))
    assert [job.choice.trust_remote_code for job in seen] == [False]
    elsewhere = tmp_path / "elsewhere.jsonl"
    engine = EngineChoice("service", "https://example.invalid:8000")
    write(replace(old, head=replace(old.head, engine=engine)), elsewhere)
    with pytest.raises(InputError, match=r"is a record of servers at https://example.invalid:8000"):
        compare_now(elsewhere, None, None, NOW)
