"""The trainer with an engine that samples elsewhere: order of events, staleness, weights that must be sent again.

The engine is a stand-in; the real servers are in tests/rollout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.far_engine import FarEngine
from tests.small_trainer import Memory, vowels

from ascent.rollout.engine import EngineLostError, WeightMismatchError
from ascent.training.step.ranks import Ranks
from ascent.types import Completion, EngineStats

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


def train(
    folder: Path, output: Path, engine: FarEngine, *, staleness: int = 0, resume: Path | None = None, **settings: Any
) -> tuple[Memory, Any]:
    from datasets import Dataset

    from ascent import GRPOConfig, GRPOTrainer

    arguments: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "max_steps": 4,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_vllm": True,
        "vllm_mode": "server",
        "seeded_sampling": True,
        **settings,
    }
    rows = [{"prompt": f"def f{number}(a):", "task_id": f"add/{number}"} for number in range(16)]
    memory = Memory()
    trainer = GRPOTrainer(
        str(folder),
        vowels,
        GRPOConfig(str(output), **arguments),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:4]) if "eval_steps" in settings else None,
        engine=engine,
        staleness=staleness,
        recorder=memory,
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return memory, trainer


def test_without_staleness_each_generation_is_sampled_with_the_newest_weights(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    engine = FarEngine()
    memory, _ = train(tiny_policy(), tmp_path, engine)
    expected = [event for step in range(4) for event in (("update", step), ("submit", [str(step)]))]
    assert engine.events == expected
    assert [step.metrics["rollout/staleness"] for step in memory.steps] == [0, 0, 0, 0]
    logps = [canary.logps for canary in engine.canaries]
    assert all(first != second for first, second in itertools.pairwise(logps)), "the canary sees the updates"


def test_with_staleness_the_next_generation_is_on_its_way_while_this_one_trains(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    engine = FarEngine(seconds=0.002)
    memory, _ = train(tiny_policy(), tmp_path, engine, staleness=1)
    assert engine.events == [
        ("update", 0),
        ("submit", ["0"]),
        ("submit", ["1"]),
        ("update", 1),
        ("submit", ["2"]),
        ("update", 2),
        ("submit", ["3"]),
    ]
    assert [step.metrics["rollout/staleness"] for step in memory.steps] == [0, 1, 1, 1]
    assert [step.metrics["rollout/dropped_completions"] for step in memory.steps] == [0, 0, 0, 0]
    assert [number for number, _, _ in memory.generations] == [0, 1, 2, 3]
    versions = [{record.weight_version for record in records} for _, records, _ in memory.generations]
    assert versions == [{0}, {0}, {1}, {2}]
    for number, records, _ in memory.generations:
        assert {record.group_id for record in records} == {f"{number}-0", f"{number}-1"}


def test_staleness_changes_no_prompt_and_no_seed(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """The stand-in samples alike whatever the weights, so generations must be equal with and without staleness."""
    fresh, _ = train(tiny_policy(), tmp_path / "0", FarEngine(), staleness=0)
    stale, _ = train(tiny_policy(), tmp_path / "1", FarEngine(), staleness=1)
    for (_, mine, _), (_, theirs, _) in zip(stale.generations, fresh.generations, strict=True):
        assert [(r.task_id, r.prompt, r.completion_ids.tolist()) for r in mine] == [
            (r.task_id, r.prompt, r.completion_ids.tolist()) for r in theirs
        ]


def test_generations_of_several_steps_look_one_generation_ahead(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    engine = FarEngine()
    settings: dict[str, Any] = {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "max_steps": 6}
    train(tiny_policy(), tmp_path, engine, staleness=1, **settings)
    submitted = [groups for what, groups in engine.events if what == "submit"]
    assert submitted == [["0"], ["1"], ["2"]]
    assert [version for what, version in engine.events if what == "update"] == [0, 1]


def test_evaluation_comes_between_without_losing_what_is_on_its_way(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    engine = FarEngine()
    settings: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 4}
    memory, _ = train(tiny_policy(), tmp_path, engine, staleness=1, per_device_eval_batch_size=4, **settings)
    assert [number for number, _, evaluation in memory.generations if not evaluation] == [0, 1, 2, 3]
    assert sum(step.metrics["rollout/dropped_completions"] or 0 for step in memory.steps) == 0
    submitted = [groups for what, groups in engine.events if what == "submit"]
    assert len(submitted) == len({str(groups) for groups in submitted if groups != ["eval"]}) + submitted.count(
        ["eval"]
    )


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_server_that_lost_its_weights_gets_them_again(
    tiny_policy: Callable[..., Path], tmp_path: Path, staleness: int
) -> None:
    engine = FarEngine()
    engine.loses_weights_after = 11  # in the second generation
    memory, _ = train(tiny_policy(), tmp_path, engine, staleness=staleness)
    ids = [record.sample_id for _, records, _ in memory.generations for record in records]
    assert len(ids) == len(set(ids)) == 32, "each completion once"
    assert [event for event in engine.events if event[0] == "update"].count(("update", 1)) == 2 - staleness
    assert max(step.metrics["rollout/staleness"] or 0 for step in memory.steps) <= staleness


def test_a_mismatch_is_sent_once_more_and_then_stops_the_run(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    engine = FarEngine()
    engine.failures = [WeightMismatchError("differs", ["model.norm.weight"])]
    train(tiny_policy(), tmp_path / "1", engine, max_steps=1)
    assert engine.events[:3] == [("update", 0), ("update", 0), ("submit", ["0"])]
    engine = FarEngine()
    engine.failures = [WeightMismatchError("differs", ["model.norm.weight"])] * 2
    with pytest.raises(WeightMismatchError, match="differs"):
        train(tiny_policy(), tmp_path / "2", engine, max_steps=1)
    assert [event for event in engine.events if event[0] == "submit"] == []


def test_the_end_of_the_service_ends_the_run_in_its_own_words(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    class Lost(FarEngine):
        def poll(self) -> list[Completion]:
            if sum(what == "submit" for what, _ in self.events) == 3:
                raise EngineLostError("5 restarts in 30 minutes")
            return super().poll()

    with pytest.raises(EngineLostError, match="5 restarts"):
        train(tiny_policy(), tmp_path, Lost(), staleness=1)


def test_a_resumed_run_trains_on_what_had_been_sampled_ahead(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"staleness": 1, "save_strategy": "steps", "save_steps": 2}
    whole, _ = train(tiny_policy(), tmp_path, FarEngine(), **settings)
    engine = FarEngine()
    rest, _ = train(tiny_policy(), tmp_path, engine, resume=tmp_path / "checkpoint-2", **settings)
    assert [(e.step, e.metrics["loss"], e.metrics["reward"], e.metrics["rollout/staleness"]) for e in rest.steps] == [
        (e.step, e.metrics["loss"], e.metrics["reward"], e.metrics["rollout/staleness"]) for e in whole.steps[2:]
    ]
    versions = [{record.weight_version for record in records} for _, records, _ in rest.generations]
    assert versions == [{1}, {2}], "generation 2 was sampled before the checkpoint, and is not sampled again"
    assert [groups for what, groups in engine.events if what == "submit"] == [["3"]]


def test_an_evaluation_on_start_leaves_what_had_been_sampled_ahead(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"staleness": 1, "save_strategy": "steps", "save_steps": 2}
    whole, _ = train(tiny_policy(), tmp_path, FarEngine(), **settings)
    engine = FarEngine()
    settings |= {"eval_on_start": True, "eval_steps": 100}
    rest, _ = train(tiny_policy(), tmp_path, engine, resume=tmp_path / "checkpoint-2", **settings)
    assert [e.metrics["loss"] for e in rest.steps] == [e.metrics["loss"] for e in whole.steps[2:]]
    assert [e.metrics["rollout/dropped_completions"] for e in rest.steps] == [0, 0]
    submitted = [groups for what, groups in engine.events if what == "submit"]
    assert [groups for groups in submitted if groups != ["eval"]] == [["3"]]


def test_generations_of_several_steps_resume_with_what_is_buffered_and_what_was_sampled_ahead(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "max_steps": 6}
    settings |= {"staleness": 1, "save_strategy": "steps", "save_steps": 3}
    whole, _ = train(tiny_policy(), tmp_path, FarEngine(), **settings)
    engine = FarEngine()
    rest, _ = train(tiny_policy(), tmp_path, engine, resume=tmp_path / "checkpoint-3", **settings)
    assert [(e.step, e.generation, e.metrics["loss"]) for e in rest.steps] == [
        (e.step, e.generation, e.metrics["loss"]) for e in whole.steps[3:]
    ]
    assert [number for number, _, _ in rest.generations] == [2]
    assert not [groups for what, groups in engine.events if what == "submit"], "2 was sampled ahead, 1 is buffered"


def test_rewards_of_dropped_completions_are_let_go(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    class Remembers:
        __name__ = "remembers"

        def __init__(self) -> None:
            self.started: list[tuple[str, str]] = []

        def start(self, row: Any, text: str) -> None:
            self.started.append((row["task_id"], text))

        def drop(self, row: Any, text: str) -> None:
            self.started.remove((row["task_id"], text))

        def __call__(self, completions: list[str], task_id: list[str], **_: Any) -> list[float]:
            for key in zip(task_id, completions, strict=True):
                self.started.remove(key)
            return vowels(completions)

    _, trainer = train(tiny_policy(), tmp_path, FarEngine(), staleness=1, max_steps=2)
    trainer.reward_funcs[0] = remembers = Remembers()
    rows = [trainer.train_dataset[place] for place in (0, 0, 0, 0, 1, 1, 1, 1)]
    groups = trainer._groups(trainer._prompt_ids(rows), rows, 4, "9")
    trainer._sampler.sample_ahead(groups)
    trainer._sampler.finish_ahead()
    assert len(remembers.started) == 8
    trainer._sampler.drop_ahead()
    assert not remembers.started
    assert trainer._sampler.take_dropped() == 8


def test_a_checkpoint_that_is_there_is_not_written_anew_when_sampling_ends(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    _, trainer = train(tiny_policy(), tmp_path, FarEngine(), max_steps=2, save_strategy="steps", save_steps=1)
    state = tmp_path / "checkpoint-2" / "ascent_state.json"
    before = state.stat().st_mtime_ns
    assert trainer.save_last_step() == 2
    assert state.stat().st_mtime_ns == before
    trainer._saved_step = 1
    assert trainer.save_last_step() == 2
    assert state.stat().st_mtime_ns > before


def test_figures_of_engines_are_of_all_ranks() -> None:
    from ascent.training.records.engine_figures import of_all_ranks

    class Two(Ranks):
        def exchange(self, thing: Any) -> list[Any]:
            return [thing, {**thing, "running": 5, "kv_cache_use": 0.75, "tokens_per_second": 4.0, "latency_p50": 3.0}]

    class Here(FarEngine):
        def stats(self) -> EngineStats:
            return EngineStats(kv_cache_use=0.5, running=3, preemptions=2, tokens_per_second=1.0, latency_p50=1.0)

    apart = of_all_ranks(Here(), Two(0, 2), same_servers=False)
    assert apart == EngineStats(0.75, running=8, preemptions=4, tokens_per_second=5.0, latency_p50=2.0)
    together = of_all_ranks(Here(), Two(0, 2), same_servers=True)
    assert together == EngineStats(0.75, running=5, preemptions=2, tokens_per_second=5.0, latency_p50=2.0)
    assert of_all_ranks(None, Two(0, 2), same_servers=False) is None


def test_servers_on_devices_that_are_not_there_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ascent import devices
    from ascent.config import RunConfig
    from ascent.errors import InputError
    from ascent.rollout.engine import EngineSettings
    from ascent.tracking.run_directory import RunDirectory
    from ascent.training.engines import servers as serving

    monkeypatch.setattr(serving, "engine_kind", lambda: "npu")
    monkeypatch.setattr(devices, "kind", lambda: "npu")
    monkeypatch.setattr(devices, "count", lambda: 4)
    config = RunConfig.model_validate({"model": {"path": "m"}, "rollout": {"mode": "server", "replicas": 2}})
    engine = EngineSettings("m", "bfloat16", 64)
    with (
        pytest.raises(InputError, match=r"(?s)devices 4, 5, but 4 are visible \(0 to 3\).*takes the first 4"),
        serving.serving(config, engine, RunDirectory(tmp_path), rank=0, processes=4),
    ):
        pass


def test_a_service_that_died_meanwhile_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.errors import InputError
    from ascent.rollout.service.address import ServiceAddress
    from ascent.training.engines import servers as serving

    def lost(*_: Any, **__: Any) -> None:
        raise EngineLostError("service policy was stopped")

    monkeypatch.setattr(serving, "standing_service", lambda name: ServiceAddress(name, (), "token"))
    monkeypatch.setattr(serving, "_delivery", lambda *_: None)
    monkeypatch.setattr(serving, "ServedEngine", lost)
    with pytest.raises(InputError, match=r"(?s)policy was stopped.*ascent serve MODEL"):
        serving.connect("policy")
