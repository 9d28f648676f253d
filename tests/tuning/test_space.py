"""Which settings are tried on which machine, and the workloads that they are tried with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tracking.test_rollouts import record
from tests.tuning.standin import BASE, MACHINE, cpu_space

from ascent.config import load
from ascent.errors import InputError
from ascent.memory.cost import CostModel
from ascent.rollout.engine import EngineSettings
from ascent.rollout.token_arrays import as_token_ids
from ascent.rollout.vllm_arguments import command_line, engine_arguments
from ascent.tracking.rollouts import write_rollouts
from ascent.tuning import workload as workloads
from ascent.tuning.budget import seconds_of
from ascent.tuning.grouping import estimates, sizes, update_cost
from ascent.tuning.probe import Group
from ascent.tuning.space import KEYS, Needs, Point, space
from ascent.tuning.workload import Workload


def test_two_cores() -> None:
    made = cpu_space()
    assert made.values["max_num_seqs"] == (8, 16, 32, 64)
    assert set(made.values) >= {"enforce_eager", "block_size", "threads", "binding", "prefix_caching"}
    assert BASE in made.points
    assert len(set(made.points)) == len(made.points)
    assert all(point.max_num_batched_tokens >= max(point.max_num_seqs, 300) for point in made.points)


def test_npus_stay_eager_with_their_blocks_and_it_is_told() -> None:
    made = space(BASE, replace(MACHINE, kind="npu"), Needs(64, 300, 2**20, 64))
    assert not {"enforce_eager", "block_size", "threads", "binding"} & set(made.values)
    assert {"graphs", "other block sizes"} <= {each.what for each in made.left_out}


def test_devices_are_divided_between_replicas_and_tensor_parallelism() -> None:
    base = replace(BASE, kv_cache_mb=None, replicas=4)
    needs = Needs(64, 300, 2**20, 64, shares_device=False)
    made = space(base, replace(MACHINE, kind="cuda", devices=4), needs, servers=4)
    assert {(point.replicas, point.tensor_parallel) for point in made.points} == {(1, 4), (2, 2), (4, 1)}
    assert "engine_share" not in made.values


def test_a_cache_that_is_too_small_is_varied() -> None:
    assert cpu_space().values.get("kv_cache_mb") is None
    made = space(replace(BASE, kv_cache_mb=32), MACHINE, Needs(64, 300, 2**20, 32))
    assert made.values["kv_cache_mb"] == (32, 64)
    made = space(replace(BASE, kv_cache_mb=None), replace(MACHINE, kind="cuda"), Needs(64, 300, 2**20, 32))
    assert made.values["engine_share"] == (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def test_what_does_not_fit_is_not_tried_but_the_configured_is() -> None:
    made = space(BASE, MACHINE, Needs(64, 300, 2**20, 64), fits=lambda point: point.max_num_seqs < 32)
    assert {point.max_num_seqs for point in made.points if point != BASE} == {8, 16}
    assert BASE in made.points
    assert [each.points for each in made.left_out if "plan" in each.why] == [len(cpu_space().points) - len(made.points)]


def test_the_engine_that_is_built_holds_the_points_with_its_other_settings() -> None:
    made = cpu_space()
    built = made.built_for(replace(BASE, max_num_seqs=8, max_num_batched_tokens=1024))
    assert (built.max_num_seqs, built.max_num_batched_tokens) == (64, 8192)
    assert built.engine == BASE.engine


def test_every_setting_has_a_key_of_the_configuration(tmp_path: Path) -> None:
    values: dict[str, object] = {"rollout.mode": "server", "rollout.replicas": 2, "rollout.tensor_parallel_size": 2}
    point = Point(8, 512, False, False, False, 32, 64, 0.5, 1)
    values |= {key: getattr(point, name) for name, key in KEYS.items() if key not in values}
    config = tmp_path / "run.yaml"
    config.write_text("model:\n  path: somewhere\n")
    found, _ = load(config, [f"{key}={str(value).lower()}" for key, value in values.items()])
    assert (found.rollout.block_size, found.rollout.chunked_prefill, found.rollout.threads) == (32, False, 1)


def test_settings_reach_vllm() -> None:
    arguments = engine_arguments(EngineSettings("m", "float32", 64, block_size=32, chunked_prefill=False))
    assert (arguments["block_size"], arguments["enable_chunked_prefill"]) == (32, False)
    assert "--no-enable-chunked-prefill" in command_line(arguments)
    assert "--block-size" not in command_line(engine_arguments(EngineSettings("m", "float32", 64)))


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_budgets(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "0m", "-5m", "10 minutes", "nan"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="expected a time"):
        seconds_of(text)


WORKLOAD = Workload(tuple(Group((place, 1, 2), (10, 20, 30, 40)) for place in range(4)), "a test")


def test_a_workload_shortened_and_regrouped() -> None:
    assert (WORKLOAD.sequences, WORKLOAD.tokens, WORKLOAD.longest) == (16, 400, 43)
    assert WORKLOAD.shortened(0.01).tokens == 16  # none becomes empty
    pairs = WORKLOAD.regrouped(8)
    assert pairs is not None
    assert (len(pairs.groups), pairs.tokens, pairs.sequences) == (2, 400, 16)
    assert WORKLOAD.regrouped(2) is None  # eight prompts, and there are four
    assert WORKLOAD.regrouped(5) is None
    assert sizes(WORKLOAD, 4) == [8, 16]


def test_a_workload_is_read_as_it_was_written(tmp_path: Path) -> None:
    WORKLOAD.write(tmp_path / "workload.json")
    assert workloads.read(tmp_path / "workload.json") == WORKLOAD


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"schema": "ascent.workload/1", "source": "", "groups": [[[1], [0]]]}']
)
def test_a_workload_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "workload.json").write_text(text)
    with pytest.raises(InputError, match="no workload can be read"):
        workloads.read(tmp_path / "workload.json")


@pytest.mark.torch
def test_lengths_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model:\n  path: x\n")
    (tmp_path / "rollouts").mkdir()
    for generation in range(3):
        rows = [
            record(
                sample_id=f"{generation}/{group}/{index}",
                generation=generation,
                group_id=str(group),
                index=index,
                prompt_ids=(group, 5),
                completion_ids=as_token_ids([1] * (10 * generation + index + 1)),
            )
            for group in range(2)
            for index in range(2)
        ]
        write_rollouts(tmp_path / "rollouts" / f"{generation:06d}-rank0.parquet", rows)
    newest = workloads.of_run(tmp_path, 2)
    assert [group.lengths for group in newest.groups] == [(21, 22), (21, 22)]
    assert {group.prompt_ids for group in newest.groups} == {(0, 5), (1, 5)}
    assert "generation 2" in newest.source
    assert len(workloads.of_run(tmp_path, 5).groups) == 5


def test_a_run_without_completions(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model:\n  path: x\n")
    with pytest.raises(InputError, match="no completion is recorded"):
        workloads.of_run(tmp_path, 2)
    with pytest.raises(InputError, match="not a run directory"):
        workloads.of_run(tmp_path / "nowhere", 2)


def test_larger_groups_cost_less_to_train_by_their_prompts() -> None:
    cost = CostModel(token=1.0, pair=0.0, start=10.0, copy=0.0)
    long = Workload(tuple(Group((0,) * 100, (10, 10)) for _ in range(4)), "")
    assert update_cost(long, 10_000, cost) == (10 + 4 * 120, 1)
    assert update_cost(long, 120, cost) == (4 * (10 + 120), 4)
    double = long.regrouped(4)
    assert double is not None
    found = estimates([(long, 2.0), (double, 1.0)], 240, cost, lambda group, tokens: tokens < 900)
    own = next(each for each in found if each.configured)
    assert (own.group, own.update, own.sampling, own.passes) == (2, 1.0, 2.0, 2)
    assert min(each.update for each in found if each.group == 4) < own.update
    assert all(each.tokens < 900 for each in found)
