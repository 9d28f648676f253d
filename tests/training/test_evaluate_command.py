"""`ascent evaluate`: the results of a run's own evaluation, resumed after a kill, compared, and clear refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.run_config import write_config

from ascent.cli import main
from ascent.errors import InputError
from ascent.report.paired import difference
from ascent.tracking.rollouts import read_rollouts
from ascent.tracking.run_directory import RunDirectory, read_json_lines
from ascent.tracking.task_file import read_tasks
from ascent.training.evaluate.results import PolicyResult, TaskCounts, compared, counted

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def trained(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    """A run of two steps, with a checkpoint after each."""
    from ascent import config
    from ascent.tracking import run_directory
    from ascent.training.run import train

    folder = tmp_path_factory.mktemp("evaluate")
    file = write_config(folder / "c.yaml", tiny_policy(), task_file, max_steps=2, save_steps=1, save_total_limit=None)
    settings, _ = config.load(file)
    run = run_directory.create(folder, "run")
    run.config.write_text(settings.to_yaml(), encoding="utf-8")
    train(settings, run)
    return run


def evaluate(*words: object, **fields: Any) -> Any:
    """As the command does, with the transformers engine."""
    from ascent.training.evaluate.command import evaluate as run
    from ascent.training.evaluate.plan import Asked

    defaults: dict[str, Any] = {"engine": "transformers", "batch": 8, "samples": 2}
    return run(Asked(str(words[0]), **{**defaults, **fields}))


def rows_of(run: Path, kind: str, pattern: str = "eval-*") -> list[dict[str, Any]]:
    file = sorted((run / "rollouts").glob(pattern))[-1]
    return [row for row in read_rollouts(file) if f"-{kind}/" in row["sample_id"]]


def test_it_samples_and_judges_as_the_run_itself_did(
    trained: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same tokens for the same seeds, the same verdicts, and the rates that the run wrote down."""
    out = tmp_path / "out"
    report = evaluate(trained.path, out=out)
    for kind in ("greedy", "sampled"):
        own, new = rows_of(trained.path, kind), rows_of(out, kind)
        assert len(own) == len(new) > 0
        for one, other in zip(own, new, strict=True):
            shared = ("task_id", "prompt", "completion_ids", "program", "outcomes", "reward", "weight_version")
            for column in (*shared, "markers"):
                assert one[column] == other[column], column
    stored = json.loads(trained.evaluation.read_text())["after"]["results"]
    line = read_json_lines(out / "evaluations.jsonl")[0]
    assert (line["name"], line["step"], line["evaluation"]) == ("evaluate", 2, 0)
    assert line["results"] == {
        task["task_id"]: {"greedy": task["greedy"], "sampled": task["sampled"], "samples": 2} for task in stored
    }
    assert line["pass@1"] == pytest.approx(sum(task["sampled"] for task in stored) / len(stored))
    assert line["completions"] == len(stored) * 3
    assert (
        json.loads((out / "evaluation.json").read_text())["after"]
        == json.loads(trained.evaluation.read_text())["after"]
    )
    assert [task.task_id for task in read_tasks(out / "tasks.jsonl")] == [task["task_id"] for task in stored]
    content = report.to_json()
    assert content["schema"] == "ascent.evaluate/1"
    assert content["held_out"] is True
    assert content["policies"][0]["rates"]["pass@1"]["mean"] == line["pass@1"]
    assert not (out / "partial").exists()
    assert "held-out tasks of" in report.to_text()
    assert "run-step2" in capsys.readouterr().err


def test_a_checkpoint_and_tasks_that_the_run_was_trained_on(
    trained: RunDirectory, task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = evaluate(trained.checkpoints / "checkpoint-1", tasks=str(task_file), out=tmp_path / "out", greedy=False)
    assert report.ours.step == 1
    assert len(report.ours.tasks) == 8
    assert "the run was trained on 6 of these 8 tasks" in capsys.readouterr().err
    assert any("trained on 6" in note for note in report.to_json()["notes"])
    rows = rows_of(tmp_path / "out", "sampled")
    assert {row["weight_version"] for row in rows} == {1}
    assert {row["step"] for row in rows} == {1}
    assert "greedy" not in report.ours.rates((1,))


def test_weights_are_found_wherever_a_run_puts_them(
    trained: RunDirectory, tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    from ascent.training.evaluate.target import find_target
    from ascent.training.export import export

    export(trained.path, checkpoint=1, output=tmp_path / "away")
    export(trained.path, checkpoint=1)
    for path, name, of_run in (
        (trained.path, "run-step2", True),
        (trained.path / "model", "run-step2", True),
        (trained.checkpoints / "checkpoint-1", "run-step1", True),
        (trained.path / "exports" / "step-1", "run-step1", True),
        (tmp_path / "away", "run-step1", False),
        (tiny_policy(), tiny_policy().name, False),
    ):
        target = find_target(str(path))
        assert target.name == name
        assert (target.config is not None) == of_run
        assert target.step == (0 if path == tiny_policy() else int(name[-1]))


def test_folders_that_are_no_target_are_named(trained: RunDirectory, tmp_path: Path) -> None:
    from ascent.training.evaluate.target import find_target

    with pytest.raises(InputError, match="none: no such folder"):
        find_target(str(tmp_path / "none"))
    with pytest.raises(InputError, match="a folder of runs") as refused:
        find_target(str(trained.path.parent))
    assert str(trained.path) in refused.value.mend


def test_what_was_judged_is_not_judged_again(
    trained: RunDirectory, task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended in the third batch of five: the next start samples three, and all is as if nothing had happened."""
    from ascent.rollout.engines.transformers import TransformersEngine

    asked: dict[str, Any] = {"tasks": str(task_file), "samples": 4}
    evaluate(trained.path, out=tmp_path / "whole", **asked)
    sizes: list[int] = []
    submit = TransformersEngine.submit

    def counting(self: Any, requests: Sequence[Any]) -> None:
        if len(sizes) == 2:
            raise KeyboardInterrupt
        sizes.append(sum(request.n for request in requests))
        submit(self, requests)

    with monkeypatch.context() as patch:
        patch.setattr(TransformersEngine, "submit", counting)
        with pytest.raises(KeyboardInterrupt):
            evaluate(trained.path, out=tmp_path / "cut", **asked)
    assert sizes == [8, 8]
    assert not (tmp_path / "cut" / "evaluations.jsonl").exists()
    (tmp_path / "cut" / "partial" / ".sampled-000001.parquet.tmp").write_bytes(b"half")
    again: list[int] = []

    def noting(self: Any, requests: Sequence[Any]) -> None:
        again.append(len(requests))
        submit(self, requests)

    with monkeypatch.context() as patch:
        patch.setattr(TransformersEngine, "submit", noting)
        evaluate(trained.path, out=tmp_path / "cut", **asked)
    assert len(again) == 3
    left_out = ("sample_id", "sandbox_seconds", "sample_seconds", "error")
    for kind in ("greedy", "sampled"):
        whole, cut = (rows_of(tmp_path / name, kind) for name in ("whole", "cut"))
        for one, other in zip(whole, cut, strict=True):
            assert {k: v for k, v in one.items() if k not in left_out} == {
                k: v for k, v in other.items() if k not in left_out
            }
    lines = [read_json_lines(tmp_path / name / "evaluations.jsonl")[0] for name in ("whole", "cut")]
    assert lines[0]["results"] == lines[1]["results"]


def test_a_finished_evaluation_is_told_without_sampling(
    trained: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ascent.training.evaluate import sampling

    monkeypatch.chdir(tmp_path)
    first = evaluate(trained.path)
    folder = first.ours.folder
    assert folder.parent == Path("runs")
    assert folder.name.startswith("evaluate-run-step2-tasks-")
    monkeypatch.setattr(sampling, "opened_policy", None)
    again = evaluate(trained.path)
    assert again.ours == first.ours
    assert "nothing is sampled again" in capsys.readouterr().err
    (folder / "evaluations.jsonl").unlink()  # a kill between the completions and the line
    assert evaluate(trained.path).ours == first.ours
    assert len(read_json_lines(folder / "evaluations.jsonl")) == 1


def test_two_are_compared_by_task(
    trained: RunDirectory, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    report = evaluate(trained.path, tasks=str(task_file), against=str(tiny_policy()), samples=4)
    content = report.to_json()
    ours, theirs = content["policies"]
    assert theirs["step"] == 0
    for name in ("greedy", "pass@1"):
        pairs = [
            [float(each["greedy"]) if name == "greedy" else each["passed"] / each["samples"] for each in half]
            for half in (ours["tasks"].values(), theirs["tasks"].values())
        ]
        expected = difference(*pairs)
        assert content["comparison"]["differences"][name]["mean"] == pytest.approx(expected.mean)
        assert content["comparison"]["differences"][name]["p"] == pytest.approx(expected.p)
    assert "run-step2 - " in report.to_text()
    assert "McNemar" in report.to_text()


# ---- refusals --------------------------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["evaluate", *map(str, words), "--engine", "transformers"]) == 2
    return capsys.readouterr().err


def test_what_is_no_weights_is_refused(
    trained: RunDirectory, task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(capsys, trained.checkpoints / "checkpoint-7", "--tasks", task_file)
    assert "no such folder" in said
    half = trained.path.parent / "half"
    shutil.copytree(trained.path, half)
    (half / "checkpoints" / "checkpoint-2" / "ascent_state.json").unlink()
    said = refusal(capsys, half / "checkpoints" / "checkpoint-2", "--tasks", task_file)
    assert "isn't complete" in said
    assert "Complete checkpoints: 1." in said
    shutil.rmtree(half / "model")
    shutil.rmtree(half / "checkpoints")
    assert "neither a model nor a complete checkpoint" in refusal(capsys, half, "--tasks", task_file)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "no-such-owner/no-such-base", "r": 4})
    )
    shutil.copy(next((trained.path / "model").glob("*.safetensors")), adapter / "adapter_model.safetensors")
    assert "base model 'no-such-owner/no-such-base' isn't to be had" in refusal(capsys, adapter, "--tasks", task_file)
    assert not (tmp_path / "runs").exists(), "a refused evaluation leaves nothing"


def test_what_cant_be_asked_is_refused(
    trained: RunDirectory,
    tiny_policy: Callable[..., Path],
    task_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_policy()
    said = refusal(capsys, model, "--tasks", task_file, "--samples", 4, "--k", 1, 5)
    assert "pass@5 can't be told from 4 samples of a task" in said
    assert "--samples 5 or more" in said
    assert "which tasks?" in refusal(capsys, model)
    assert "there is no task file" in refusal(capsys, model, "--tasks", "none.jsonl")
    untested = tmp_path / "untested.jsonl"
    untested.write_text('{"id": "a", "prompt": "p", "visible_tests": [], "hidden_tests": []}\n')
    assert "the task has no test" in refusal(capsys, model, "--tasks", untested)
    assert "expected above 0" in refusal(capsys, model, "--tasks", task_file, "--temperature", 0)
    assert "--samples 0: expected at least 1" in refusal(capsys, model, "--tasks", task_file, "--samples", 0)
    assert "expected at most 100000" in refusal(capsys, model, "--tasks", task_file, "--samples", 10**9)
    assert "--k 0: expected at least 1" in refusal(capsys, model, "--tasks", task_file, "--k", 0)
    assert "don't fit into its context of 256" in refusal(capsys, model, "--tasks", task_file, "--max-tokens", 256)
    assert "the same as MODEL" in refusal(capsys, model, "--tasks", task_file, "--against", model)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "something").write_text("")
    assert "is no evaluation" in refusal(capsys, model, "--tasks", task_file, "--max-tokens", 8, "--out", taken)
    assert (taken / "something").exists()
    evaluate(trained.path, out=tmp_path / "done", greedy=False)
    said = refusal(capsys, trained.path, "--out", tmp_path / "done", "--samples", 3)
    assert "holds another evaluation" in said
    assert "samples: 2 there, 3 asked" in said
    assert "the results of an evaluation" in refusal(capsys, tmp_path / "done", "--tasks", task_file)


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    from ascent.training.evaluate.folder import opened_folder

    with opened_folder(tmp_path / "out", {"a": 1}, 0) as folder:
        folder.part("sampled", 0).write_bytes(b"")
        with (
            pytest.raises(InputError, match="another evaluation is being written"),
            opened_folder(tmp_path / "out", {"a": 1}, 0),
        ):
            pass
    assert (tmp_path / "out" / "partial").is_dir()


# ---- counting --------------------------------------------------------------------------------------------------------


def row(task: str, kind: str, outcomes: list[str], reward: float | None = 0.0) -> dict[str, Any]:
    return {"sample_id": f"out/eval-0-{kind}/0/1", "task_id": task, "outcomes": outcomes, "reward": reward}


def test_what_could_not_be_judged_counts_nowhere() -> None:
    rows = [
        row("a", "sampled", ["passed", "passed"], 1.0),
        row("a", "sampled", ["passed", "failed"]),
        row("a", "sampled", ["not_run", "not_run"], None),
        row("a", "greedy", ["passed"], 1.0),
        row("b", "sampled", []),
        row("b", "greedy", ["not_run"], None),
    ]
    tasks, unjudged = counted(rows, ["a", "b"])
    assert tasks == {"a": TaskCounts(2, 1, True), "b": TaskCounts(1, 0, None)}
    assert unjudged == 2
    result = PolicyResult("m", "m", 0, Path(), tasks, {"a": "", "b": ""}, unjudged)
    rates = result.rates((1, 2))
    assert rates["pass@1"].mean == 0.25
    assert (rates["pass@2"].mean, rates["pass@2"].tasks) == (1.0, 1), "b has one sample that was judged"
    assert rates["greedy"].tasks == 1


def test_tasks_that_only_one_was_asked_are_not_compared() -> None:
    one = PolicyResult("m", "m", 0, Path(), {"a": TaskCounts(4, 4), "b": TaskCounts(4, 0)}, {}, 0)
    other = PolicyResult("n", "n", 0, Path(), {"a": TaskCounts(4, 1), "c": TaskCounts(4, 4)}, {}, 0)
    found = compared(one, other, (1,))
    assert found.differences["pass@1"].mean == 0.75
    assert found.differences["pass@1"].tasks == 1
    assert (found.better, found.worse) == (("a",), ())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_vllm_from_the_command_line(
    ascent: Callable[..., subprocess.CompletedProcess[str]],
    tiny_policy: Callable[..., Path],
    task_file: Path,
    tmp_path: Path,
) -> None:
    words = ("evaluate", tiny_policy(), "--tasks", task_file, "--samples", 3, "--max-tokens", 4, "--json")
    done = ascent(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    policy = content["policies"][0]
    assert len(policy["tasks"]) == 8
    assert all(each["samples"] == 3 for each in policy["tasks"].values())
    assert set(policy["rates"]) == {"greedy", "pass@1"}
    rows = read_rollouts(next((tmp_path / policy["folder"] / "rollouts").glob("eval-*")))
    assert len(rows) == 8 * 4
    assert all(len(each["logps"]) == len(each["completion_ids"]) for each in rows)


def test_chats_are_read_as_the_chat_template_says(tiny_policy: Callable[..., Path]) -> None:
    from ascent.models.folder import load_tokenizer
    from ascent.training.evaluate.plan import Asked, make_plan
    from ascent.training.evaluate.policy import EnginePolicy

    tokenizer = load_tokenizer(tiny_policy())
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant{% if loud %}!{% endif %}{% endif %}"
    )
    plan = replace(make_plan(Asked("m", "builtin"), None, context=256), template={"loud": True})
    policy = EnginePolicy(None, tokenizer, plan, 0, (1,), lambda: None)  # type: ignore[arg-type]
    chats = [[{"role": "user", "content": "def f(a):"}], [{"role": "user", "content": "x"}]]
    assert [tokenizer.decode(ids) for ids in policy.tokenize(chats)] == [
        "user: def f(a):\nassistant!",
        "user: x\nassistant!",
    ]
    assert policy.tokenize(["def f"]) == [tokenizer("def f")["input_ids"]]
    assert policy.sampling(greedy=True).temperature == 0
    assert policy.sampling(greedy=False).stop_token_ids == (1,)
    assert policy.sampling(greedy=False).max_tokens == 128, "half of the context"


def test_tasks_that_could_be_judged_before_and_cant_now_are_told(
    trained: RunDirectory, task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was judged is of other places in the batches then."""
    from ascent.training.evaluate import sampling
    from ascent.training.evaluate.folder import EvaluationFolder

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EvaluationFolder, "finish", ended)
        with pytest.raises(KeyboardInterrupt):
            evaluate(trained.path, tasks=str(task_file), out=tmp_path / "out")
    monkeypatch.setattr(sampling, "judgeable", lambda tasks, sandbox: (tasks[1:], ("add/0: no compiler",)))
    with pytest.raises(InputError, match="8 tasks could be judged when it was begun, 7 can be now"):
        evaluate(trained.path, tasks=str(task_file), out=tmp_path / "out")
    assert (tmp_path / "out" / "partial").is_dir()
