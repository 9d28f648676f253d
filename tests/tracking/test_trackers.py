"""Trackers: their places and runs are named before they start, and nothing that they do reaches the training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tracking.test_rollouts import record

from ascent.environment.trackers import NAMES
from ascent.errors import InputError
from ascent.tracking.run_directory import RunDirectory, create
from ascent.tracking.trackers import names as tracker_names
from ascent.tracking.trackers.ids import keep_id, read_ids
from ascent.tracking.trackers.names import KNOWN, Known, check_installed, named
from ascent.tracking.trackers.places import prepare
from ascent.tracking.trackers.samples import COLUMNS, LOG_TABLE, rows_of

torch_only = pytest.mark.torch
BY_NAME = {known.name: known for known in KNOWN}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create(tmp_path, "run")


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("none", []),
        (None, []),
        ("wandb", ["wandb"]),
        (["mlflow", "comet_ml", "tensorboard"], ["tensorboard", "mlflow"]),
        ("comet_ml", []),
        (["none"], []),
    ],
)
def test_a_setting_names_trackers(setting: Any, found: list[str]) -> None:
    assert [known.name for known in named(setting)] == found


def test_all_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_names, "is_installed", lambda known: known.name in ("wandb", "mlflow"))
    assert [known.name for known in named("all")] == [known.name for known in named(["all"])] == ["wandb", "mlflow"]


def test_one_that_is_not_there_is_refused_with_its_packages() -> None:
    absent = Known("wandb", "no_such_module", ("wandb",))
    with pytest.raises(InputError, match="names wandb, which is not installed") as refused:
        check_installed([absent, Known("json", "json", ())])
    assert "pip install wandb" in refused.value.mend
    check_installed([])


def test_a_folder_that_a_tracker_left_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "left_by_a_tracker" / "run-1").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not tracker_names.is_installed(Known("x", "left_by_a_tracker", ()))
    assert tracker_names.is_installed(Known("x", "json", ()))


def test_doctor_tries_those_that_a_run_can_name() -> None:
    assert sorted(NAMES) == sorted(BY_NAME) == sorted(LOG_TABLE)


def test_each_keeps_its_run_in_the_run_directory(run: RunDirectory) -> None:
    environ: dict[str, str] = {}
    notes = prepare(run, KNOWN, environ)
    for name in ("TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR", "SWANLAB_LOG_DIR", "WANDB_DIR", "MLFLOW_TRACKING_URI"):
        assert str(run.path) in environ[name]
    assert environ["WANDB_MODE"] == environ["SWANLAB_MODE"] == "offline"
    assert len(notes) == 2
    assert "WANDB_RUN_ID" not in environ, "a new run"


def test_what_the_user_has_set_stays(run: RunDirectory) -> None:
    environ = {"WANDB_PROJECT": "mine", "WANDB_API_KEY": "k", "SWANLAB_MODE": "cloud", "TRACKIO_DIR": "/there"}
    given = dict(environ)
    assert prepare(run, KNOWN, environ) == []
    assert {name: environ[name] for name in given} == given
    assert "WANDB_MODE" not in environ, "with a key it sends"


def test_a_resumed_run_goes_on_in_the_same_ones(run: RunDirectory) -> None:
    for name in ("wandb", "mlflow", "swanlab"):
        keep_id(run.trackers, name, {"run_id": f"id-of-{name}"})
    keep_id(run.trackers, "trackio", {"project": "ascent", "name": "run"})
    environ: dict[str, str] = {}
    prepare(run, KNOWN, environ)
    assert (environ["WANDB_RUN_ID"], environ["WANDB_RESUME"]) == ("id-of-wandb", "allow")
    assert (environ["SWANLAB_RUN_ID"], environ["SWANLAB_RESUME"]) == ("id-of-swanlab", "allow")
    assert environ["MLFLOW_RUN_ID"] == "id-of-mlflow"
    assert list(read_ids(run.trackers)) == ["wandb", "mlflow", "swanlab", "trackio"]


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": "other"}', '{"schema": "ascent.trackers/1", "wandb": 3}'])
def test_another_file_of_ids_is_refused(run: RunDirectory, content: str) -> None:
    run.trackers.write_text(content)
    with pytest.raises(InputError, match=r"trackers\.json is not what a run writes"):
        prepare(run, KNOWN, {})


def test_texts_in_tables_are_shortened_and_shown_as_they_are() -> None:
    hostile = "\x1b[31mred\u202eback\x00 <script>alert(1)</script> | a\nb"
    (row,) = rows_of([record(completion=hostile, prompt="p" * 5000, audit_outcomes=["failed"])])
    cells = dict(zip(COLUMNS, row, strict=True))
    assert cells["completion"].startswith("\\u001b[31mred\\u202eback\\u0000 <script>")
    assert cells["prompt"].endswith("(1000 characters more)")
    assert (cells["tests"], cells["hidden"]) == ("1/2", "0/1")
    assert len(rows_of([record()] * 40)) == 16


def test_tensorboard_gets_no_markup_from_a_completion() -> None:
    told: list[Any] = []

    class Writer:
        def add_text(self, *words: Any) -> None:
            told.append(words)

    class Callback:
        tb_writer = Writer()

    LOG_TABLE["tensorboard"](Callback(), 3, rows_of([record(completion="<img src=x onerror=f()> | x\n# y")]))
    ((tag, text, step),) = told
    assert (tag, step) == ("samples", 3)
    assert "&lt;img src=x onerror=f()&gt; \\| x<br># y" in text
    assert len(text.split("\n")) == 3


class State:
    is_world_process_zero = True
    global_step = 2


@pytest.fixture
def guarded(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """guarded(raises) -> the guard of a callback that notes its events, and raises what `raises(event)` gives."""
    from transformers import TrainerCallback
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    from ascent.tracking.trackers import guard

    def make(raises: Callable[[str], Exception | None] = lambda event: None) -> Any:
        class Callback(TrainerCallback):
            def __init__(self) -> None:
                self.events: list[tuple[str, Any]] = []

            def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
                self.note("on_train_begin", None)

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **keywords: Any) -> None:
                self.note("on_log", logs)

            def note(self, event: str, what: Any) -> None:
                self.events.append((event, what))
                if (error := raises(event)) is not None:
                    raise error

        tables: list[Any] = []
        monkeypatch.setitem(guard._NAMED, "wandb", lambda callback, args: {"run_id": "abc"})
        monkeypatch.setitem(LOG_TABLE, "wandb", lambda callback, step, rows: tables.append((step, len(rows))))
        monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "wandb", Callback)
        told: list[str] = []
        other = TrainerCallback()
        callbacks: list[Any] = [other, Callback()]
        evidence = [record(sample_id=f"run/0/0/{number}") for number in range(3)]
        guard.guard(callbacks, [BY_NAME["wandb"]], guard.Beside(run.trackers, lambda: evidence, told.append))
        assert callbacks[0] is other
        made = callbacks[1]
        made.told, made.tables, made.evidence = told, tables, evidence
        return made

    return make


@torch_only
def test_events_are_handed_on_without_what_has_no_value(guarded: Callable[..., Any], run: RunDirectory) -> None:
    made = guarded()
    made.on_train_begin(None, State(), None)
    assert read_ids(run.trackers) == {"wandb": {"run_id": "abc"}}
    logs = {"loss": 1.0, "reward": None}
    made.on_log(None, State(), None, logs=logs)
    assert made.inner.events[1] == ("on_log", {"loss": 1.0})
    assert logs == {"loss": 1.0, "reward": None}, "other callbacks get it as it is"
    assert made.tables == [(2, 3)]
    made.on_log(None, State(), None, logs=logs)
    assert made.tables == [(2, 3)], "once a generation"
    made.evidence[:] = [record(sample_id="run/1/0/0")]
    made.on_log(None, State(), None, logs=logs)
    assert made.tables == [(2, 3), (2, 1)]


@torch_only
def test_a_tracker_that_fails_is_told_once_and_left_alone(guarded: Callable[..., Any]) -> None:
    made = guarded(lambda event: OSError("no route to host") if event == "on_log" else None)
    made.on_train_begin(None, State(), None)
    for _ in range(6):
        made.on_log(None, State(), None, logs={"loss": 1.0})
    assert [event for event, _ in made.inner.events] == ["on_train_begin"] + ["on_log"] * 3
    assert len(made.told) == 1
    assert "the tracker wandb failed (on_log: OSError: no route to host)" in made.told[0]


@torch_only
def test_a_tracker_that_recovers_goes_on(guarded: Callable[..., Any]) -> None:
    fails = iter([True, True, False, True, True, False])
    made = guarded(lambda event: ValueError("full") if event == "on_log" and next(fails) else None)
    for _ in range(6):
        made.on_log(None, State(), None, logs={"loss": 1.0})
    assert len(made.inner.events) == 6
    assert len(made.told) == 1


@torch_only
def test_without_its_tables_or_its_name_a_tracker_still_gets_figures(
    guarded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ascent.tracking.trackers import guard

    def fail(*_: Any) -> Any:
        raise AttributeError("not in this release")

    made = guarded()
    monkeypatch.setitem(LOG_TABLE, "wandb", fail)
    monkeypatch.setitem(guard._NAMED, "wandb", fail)
    made.on_train_begin(None, State(), None)
    for number in range(5):
        made.evidence[:] = [record(sample_id=f"run/{number}/0/0")]
        made.on_log(None, State(), None, logs={"loss": 1.0})
    assert len(made.inner.events) == 6
    assert len(made.told) == 1


@torch_only
def test_a_tracker_that_can_not_start_gets_nothing(guarded: Callable[..., Any], run: RunDirectory) -> None:
    made = guarded(lambda event: RuntimeError("no login"))
    made.on_train_begin(None, State(), None)
    made.on_log(None, State(), None, logs={"loss": 1.0})
    assert [event for event, _ in made.inner.events] == ["on_train_begin"]
    assert not run.trackers.exists()


@torch_only
def test_a_training_with_a_broken_tracker_comes_to_its_end(
    tiny_policy: Callable[..., Path], tmp_path: Path, guarded: Callable[..., Any]
) -> None:
    from tests.small_trainer import Memory, make_trainer

    memory, made = Memory(), guarded(lambda event: OSError("gone"))
    trainer = make_trainer(tiny_policy(), tmp_path / "out", memory, max_steps=2)
    trainer.add_callback(made)
    trainer.train()
    assert len(memory.steps) == 2
    assert len(made.told) == 1


@torch_only
def test_loggers_get_every_figure_flat(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """Where a tracker is named; what metrics.jsonl has of a step is in what TRL logs of it."""
    from tests.small_trainer import Memory, make_trainer
    from transformers import TrainerCallback

    logged: list[dict[str, Any]] = []

    class Takes(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **keywords: Any) -> None:
            logged.append(dict(logs))

    memory = Memory()
    memory.found = {"alarm/length": 1.0}
    trainer = make_trainer(tiny_policy(), tmp_path, memory, max_steps=2)
    trainer.add_callback(Takes())
    trainer.args.report_to = ["wandb"]
    trainer.train()
    for step, logs in zip(memory.steps, logged, strict=False):
        line = json.loads(json.dumps(step.to_json()))
        line |= {f"time/{name}": value for name, value in line.pop("times").items()}
        line |= {f"{part}/{name}": value for part in ("engine", "device") for name, value in line.pop(part).items()}
        for name in ("step", "total_steps", "generation", "signal_groups"):
            line.pop(name)
        for name, value in line.items():
            if isinstance(value, (int, float)):  # objects, such as memory by phase, stay in the file
                assert logs[name] == pytest.approx(value, rel=1e-6), name
        assert logs["alarm/length"] == 1.0
