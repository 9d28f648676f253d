"""Every tracker that is installed, without a network: it keeps what metrics.jsonl has, and a resumed run goes on
in the same one. One run of three steps, and two more, feeds all of them."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.run_config import write_config

from ascent.environment import trackers
from ascent.tracking.run_directory import RunDirectory, read_json_lines
from ascent.tracking.trackers.ids import read_ids
from ascent.tracking.trackers.names import KNOWN, is_installed

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]
INSTALLED = [known.name for known in KNOWN if is_installed(known)]
Figures = dict[int, dict[str, float]]  # by step, by name as in metrics.jsonl


@pytest.fixture(scope="module")
def run(
    tiny_policy: Callable[..., Path],
    task_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
    ascent: Callable[..., subprocess.CompletedProcess[str]],
) -> RunDirectory:
    """The run, resumed once; what its trackers were called before stands in `first.json`."""
    if not INSTALLED:
        pytest.skip("no tracker is installed (requirements/trackers.txt)")
    folder = tmp_path_factory.mktemp("tracked")
    config = write_config(folder / "c.yaml", tiny_policy(), task_file, report_to=INSTALLED, save_steps=3)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    done = ascent("train", config, "tracking.eval_every=2", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr
    run = RunDirectory(folder / "runs" / "run")
    (run.path / "first.json").write_text(json.dumps(read_ids(run.trackers)))
    done = ascent("train", "--resume", run.path, "trainer.max_steps=5", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr
    assert not [path for path in elsewhere.rglob("*") if path.is_file()], "all of it is in the run directory"
    return run


def wanted(run: RunDirectory) -> Figures:
    """What metrics.jsonl has, flat."""
    found: Figures = {}
    for line in read_json_lines(run.metrics):
        line |= {f"time/{name}": value for name, value in line.pop("times").items()}
        for part in ("engine", "device"):
            line |= {f"{part}/{name}": value for name, value in (line.pop(part) or {}).items()}
        for name in ("total_steps", "generation", "signal_groups"):
            line.pop(name, None)
        step = line.pop("step")
        found[step] = {name: value for name, value in line.items() if is_number(value)}
    assert sorted(found) == [1, 2, 3, 4, 5]
    return found


def of_tensorboard(run: RunDirectory) -> Figures:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    found: Figures = defaultdict(dict)
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            found[event.step][tag.removeprefix("train/")] = event.value
    assert "samples/text_summary" in events.Tags()["tensors"]
    return found


def of_trackio(run: RunDirectory) -> Figures:
    (database,) = (run.path / "trackio").glob("*.db")
    found: Figures = defaultdict(dict)
    with sqlite3.connect(database) as opened:
        rows = opened.execute("select run_id, run_name, metrics from metrics order by id").fetchall()
    assert {name for _, name, _ in rows} == {"run"}
    assert len({number for number, _, _ in rows}) == 1
    tables = 0
    for _, _, metrics in rows:
        content = json.loads(metrics)
        assert not any(name.startswith("profiling/") for name in content), "TRL writes past the guard"
        tables += "samples" in content
        figures = {name.removeprefix("train/"): value for name, value in content.items() if is_number(value)}
        found[int(figures.pop("global_step"))] |= figures
    assert tables == 5
    return found


def of_swanlab(run: RunDirectory) -> Figures:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    files = sorted((run.path / "swanlab").glob("run-*/*.swanlab"))
    found: Figures = defaultdict(dict)
    media = set()
    for file in files:
        reader = DataStoreReader()
        reader.open(file)
        for content in reader:
            record = Record()
            record.ParseFromString(content)
            if record.HasField("start"):
                assert record.start.id == read_ids(run.trackers)["swanlab"]["run_id"]
            if record.HasField("scalar"):
                found[record.scalar.step][record.scalar.key.removeprefix("train/")] = record.scalar.value.number
            if record.HasField("media"):
                media.add((record.media.key, record.media.step, len(record.media.value.items)))
    assert {step for _, step, _ in media} == {1, 2, 3, 4, 5}
    assert all(0 < count <= 16 for _, _, count in media)
    return found


def of_wandb(run: RunDirectory) -> Figures:
    files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    found: Figures = defaultdict(dict)
    for file in files:
        for record in wandb_records(file):
            if record.HasField("run"):
                assert record.run.run_id == read_ids(run.trackers)["wandb"]["run_id"]
            if record.HasField("history"):
                items = {(item.key or "/".join(item.nested_key)): item.value_json for item in record.history.item}
                step = int(items.pop("train/global_step"))
                figures = {name.removeprefix("train/"): json.loads(value) for name, value in items.items()}
                found[step] |= {name: value for name, value in figures.items() if is_number(value)}
    tables = list((run.path / "wandb").glob("offline-run-*/files/media/table/samples_*.json"))
    assert len(tables) == 5
    assert all(0 < len(json.loads(table.read_text())["data"]) <= 16 for table in tables)
    return found


def wandb_records(file: Path) -> Iterator[Any]:
    """Its file is a log of records in blocks of 32 KiB, as LevelDB's: checksum, length, kind, bytes."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def of_mlflow(run: RunDirectory) -> Figures:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run.path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("ascent")
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.run_id == read_ids(run.trackers)["mlflow"]["run_id"]
    assert kept.info.run_name == "run"
    found: Figures = defaultdict(dict)
    for name in kept.data.metrics:
        for metric in client.get_metric_history(kept.info.run_id, name):
            found[metric.step][name] = metric.value
    tables = [file.path for file in client.list_artifacts(kept.info.run_id, "samples")]
    assert tables == [f"samples/step-{step:06d}.json" for step in range(1, 6)]
    assert len(list((run.path / "mlflow").rglob("step-*.json"))) == 5
    return found


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


READ = {
    "tensorboard": of_tensorboard,
    "trackio": of_trackio,
    "swanlab": of_swanlab,
    "wandb": of_wandb,
    "mlflow": of_mlflow,
}


@pytest.mark.parametrize("name", READ)
def test_it_keeps_the_figures_of_metrics_jsonl(name: str, run: RunDirectory) -> None:
    if name not in INSTALLED:
        pytest.skip(f"{name} is not installed (requirements/trackers.txt)")
    kept, expected = READ[name](run), wanted(run)
    for step, figures in expected.items():
        missing = set(figures) - set(kept[step])
        assert not missing, f"step {step} lacks {sorted(missing)}"
        for figure, value in figures.items():
            assert kept[step][figure] == pytest.approx(value, rel=1e-6, abs=1e-9), (step, figure)
        assert not [figure for figure, value in kept[step].items() if math.isnan(value)]
    assert {"held_out/greedy", "held_out/sampled"} <= set(kept[2])
    assert "held_out/greedy" not in kept[3]


@pytest.mark.parametrize("name", READ)
def test_a_resumed_run_goes_on_in_the_same_one(name: str, run: RunDirectory) -> None:
    if name not in INSTALLED:
        pytest.skip(f"{name} is not installed (requirements/trackers.txt)")
    first = json.loads((run.path / "first.json").read_text())
    assert first[name] == read_ids(run.trackers)[name]


@pytest.mark.parametrize("name", READ)
def test_doctor_finds_that_it_works_without_a_network(name: str) -> None:
    (finding,) = trackers.check([name])
    assert finding.rule == "A802"
    assert finding.level == ("ok" if name in INSTALLED else "error"), finding
    if name not in INSTALLED:
        assert finding.mend[0].startswith("pip install ")


def test_a_tracker_whose_place_can_not_be_written_ends_no_run(
    tiny_policy: Callable[..., Path],
    task_file: Path,
    tmp_path: Path,
    ascent: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "tensorboard" not in INSTALLED:
        pytest.skip("tensorboard is not installed (requirements/trackers.txt)")
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(os.environ, "TENSORBOARD_LOGGING_DIR", str(tmp_path / "file" / "inside"))
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, report_to="tensorboard")
    done = ascent("train", config)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the tracker tensorboard failed (on_train_begin: ") == 1
    assert len(read_json_lines(tmp_path / "runs" / "run" / "metrics.jsonl")) == 3
