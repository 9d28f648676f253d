"""`ascent tune` as it is called: what it refuses at once, and the whole of it with a real engine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ascent.errors import InputError
from ascent.tuning.asked import asked

Ascent = Callable[..., "subprocess.CompletedProcess[str]"]


def config_of(folder: Path, model: Path, task_file: Path) -> Path:
    """A small run: eight completions of four prompts."""
    path = folder / "run.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(model)},
                "tasks": {"train": str(task_file), "held_out": 0},
                "memory": {"kv_cache_mb": 32},
                "trainer": {
                    "num_generations": 8,
                    "per_device_train_batch_size": 32,
                    "max_completion_length": 24,
                },
            }
        )
    )
    return path


@pytest.mark.torch
@pytest.mark.parametrize(
    ("what", "overrides", "said"),
    [
        ("run.yaml", ["rollout.max_num_seq=4"], "unknown key; did you mean 'max_num_seqs'?"),
        ("run.yaml", ["rollout.engine=transformers"], "what is tuned are vLLM's settings"),
        ("run.yaml", ["rollout.mode=server", "rollout.server=policy"], "names servers that stand already"),
        ("nowhere.yaml", [], "nowhere.yaml: no such file"),
        ("./nowhere", [], "no such folder"),
    ],
)
def test_bad_input(
    tmp_path: Path, task_file: Path, monkeypatch: pytest.MonkeyPatch, what: str, overrides: list[str], said: str
) -> None:
    config_of(tmp_path, tmp_path / "model", task_file)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(said)):
        asked(what, overrides, None)


def test_a_budget_that_is_no_time(ascent: Ascent, tmp_path: Path) -> None:
    done = ascent("tune", "run.yaml", "--budget", "soon", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: --budget soon: expected a time such as 90s, 10m or 1h\n"


@pytest.mark.slow
@pytest.mark.torch
def test_a_real_engine(ascent: Ascent, tmp_path: Path, task_file: Path, tiny_policy: Callable[..., Path]) -> None:
    config = config_of(tmp_path, tiny_policy(), task_file)
    done = ascent("tune", config, "--budget", "50s", "--json", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "ascent.tune/1"
    assert found["seconds"] < 90
    assert len(found["measured"]) > 3
    assert any(each["exact"] for each in found["measured"])
    assert found["not_tried"]
    assert "trying" in done.stderr
    assert "best so far" in done.stderr
    workload = json.loads((tmp_path / "out" / "workload.json").read_text())
    assert sum(len(lengths) for _, lengths in workload["groups"]) == 32
    again = ascent("tune", config, "--budget", "50s", "--json", "--out", tmp_path / "out")
    assert again.returncode == 0, again.stderr
    assert "going on" in again.stderr
    assert json.loads(again.stdout)["workload"] == found["workload"]
    fragment = yaml.safe_load((tmp_path / "out" / "tune.yaml").read_text())
    overrides = [f"{section}.{key}={value}" for section, keys in fragment.items() for key, value in keys.items()]
    assert ascent("plan", config, *overrides, "--device", "cpu:8GB").returncode in (0, 1)
    other = ascent("tune", config, "trainer.temperature=0.7", "--out", tmp_path / "out")
    assert other.returncode == 2
    assert "is of another search" in other.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_a_budget_for_nothing(
    ascent: Ascent, tmp_path: Path, task_file: Path, tiny_policy: Callable[..., Path]
) -> None:
    config = config_of(tmp_path, tiny_policy(), task_file)
    done = ascent("tune", config, "--budget", "1s", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "too small for one probe" in done.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_a_model_that_no_engine_can_sample(
    ascent: Ascent, tmp_path: Path, task_file: Path, tiny_policy: Callable[..., Path]
) -> None:
    """Its weights aren't those of its config, and lengths come from a file, so that no first sampling says so."""
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(tiny_policy(), folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {"intermediate_size": 96}))
    config = config_of(tmp_path, folder, task_file)
    (tmp_path / "out").mkdir()
    groups = [[[5, 6, 7, place + 8], [4] * 8] for place in range(4)]
    workload = {"schema": "ascent.workload/1", "source": "a test", "groups": groups}
    (tmp_path / "out" / "workload.json").write_text(json.dumps(workload))
    done = ascent("tune", config, "--budget", "3m", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "no engine could be measured, with 4 settings" in done.stderr
    assert "Traceback" not in done.stderr.split("error:")[0]
