"""Which stages there are, and how they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.bench.counting_engine import CountingChild, ragged

from ascent.bench.figures import Measured
from ascent.bench.measuring import Conditions, measure
from ascent.bench.stages import STAGES, Stage, chosen, planned
from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings
from ascent.tuning.probe import Group
from ascent.tuning.workload import Workload
from ascent.types import Sampling

DEFAULT = EngineSettings("model", "float32", 512, max_num_seqs=64, kv_cache_bytes=2**29)
TUNED = replace(DEFAULT, max_num_seqs=32, kv_cache_bytes=2**30, enforce_eager=False)
N = 8


def workload() -> Workload:
    lengths = ragged(256, 200)
    return Workload(
        tuple(Group((7, place), tuple(lengths[8 * place : 8 * place + 8])) for place in range(32)), "as drawn"
    )


def conditions(repeats: int = 2) -> Conditions:
    return Conditions(workload(), Sampling(None), seeded=False, repeats=repeats)


def quiet(text: str) -> None:
    del text


def by_name(found: Sequence[Measured]) -> dict[str, Measured]:
    return {each.stage: each for each in found}


def test_stages_by_name() -> None:
    assert chosen(None, with_tuned=True) == tuple(STAGES)
    assert chosen(None, with_tuned=False) == ("padded", "static", "dynamic")
    assert chosen(["dynamic", "static"], with_tuned=False) == ("static", "dynamic")
    with pytest.raises(InputError, match="no such stage; did you mean 'dynamic'") as told:
        chosen(["dynamc"], with_tuned=False)
    assert "padded, static, dynamic, batching, memory-layout, tuned" in str(told.value)
    with pytest.raises(InputError, match="needs tuned settings"):
        chosen(["tuned"], with_tuned=False)


def test_each_stage_adds_settings_to_the_one_before() -> None:
    stages = {stage.name: stage for stage in planned(tuple(STAGES), DEFAULT, TUNED, N)}
    assert {stages[name].settings for name in ("padded", "static", "dynamic")} == {replace(DEFAULT, max_num_seqs=N)}
    assert stages["batching"].settings == replace(DEFAULT, max_num_seqs=32)
    assert stages["memory-layout"].settings == replace(DEFAULT, max_num_seqs=32, kv_cache_bytes=2**30)
    assert stages["tuned"].settings == TUNED
    assert [stages[name].at_once for name in STAGES] == [N, N, None, None, None, None]


def test_stages_are_measured_in_turns_on_one_engine_for_equal_settings() -> None:
    child = CountingChild()
    stages = planned(tuple(STAGES), DEFAULT, TUNED, N)
    found, near = measure(stages, conditions(repeats=3), lambda environment: child, quiet)
    assert [each.stage for each in found] == list(STAGES)
    assert len(child.opened) == 4
    first_engine = [(probe.at_once, sum(map(sum, (g.lengths for g in probe.groups)))) for probe in child.asked[:10]]
    tokens = workload().tokens
    padded = first_engine[1][1]
    assert padded > 1.5 * tokens
    assert first_engine == [(None, tokens), *[(N, padded), (N, tokens), (None, tokens)] * 3]
    assert all(len(each.repeats) == 3 for each in found)
    assert near is not None
    assert by_name(found)["tuned"].settings == {
        "max_num_seqs": 32,
        "kv_cache_bytes": 2**30,
        "enforce_eager": False,
    }


def test_padding_computes_every_row_until_its_batch_ends() -> None:
    """And a last batch that isn't full."""
    child = CountingChild()
    lengths = ((5, 1, 3), (2, 9, 1), (4,))
    small = Workload(tuple(Group((1, 2), each) for each in lengths), "by hand")
    stages = [Stage("padded", replace(DEFAULT, max_num_seqs=2), 2, padded=True)]
    measure(stages, replace(conditions(1), workload=small), lambda environment: child, quiet)
    assert [group.lengths for group in child.asked[1].groups] == [(5, 5, 3), (3, 9, 9), (4,)]


def test_static_waits_and_dynamic_does_not() -> None:
    child = CountingChild(row=0.0)
    found, _ = measure(
        planned(("padded", "static", "dynamic"), DEFAULT, None, N), conditions(), lambda environment: child, quiet
    )
    seconds = {each.stage: each.seconds for each in found}
    assert seconds["static"] == seconds["padded"]  # where rows cost nothing, padding doesn't either
    assert seconds["static"] > 2 * seconds["dynamic"]


@pytest.mark.parametrize("slower", [1.0, 1.25])
def test_how_near_the_bound_dynamic_batching_comes(slower: float) -> None:
    """With overhead between steps it is so much farther away; the tail, in which places are empty, costs the rest."""
    child = CountingChild(prompt=0.0001, slower=slower)
    found, near = measure(planned(("dynamic",), DEFAULT, None, N), conditions(), lambda environment: child, quiet)
    assert near is not None
    assert list(near.cost.steps) == [1, 2, 4, 8]
    assert near.cost.steps[8] == pytest.approx(0.018)
    assert near.cost.prompt_token == pytest.approx(0.0001)
    assert near.prompt_tokens == 2 * 256
    assert near.bound.in_order * slower == pytest.approx(found[0].seconds, rel=0.001)
    assert 0.9 / slower < near.reached < 1 / slower


def test_an_engine_that_does_not_start_fails_its_stages_only() -> None:
    said: list[str] = []
    child = CountingChild(refuses=32)
    stages = planned(tuple(STAGES), DEFAULT, TUNED, N)
    found, near = measure(stages, conditions(), lambda environment: child, said.append)
    assert [each.stage for each in found if each.failed] == ["batching", "memory-layout", "tuned"]
    assert by_name(found)["tuned"].failed == "memory: no room for the KV cache\n  more lines"
    assert near is not None
    assert any("no room" in each for each in said)


def test_a_stage_that_changes_nothing_is_not_measured_again() -> None:
    child = CountingChild()
    tuned = replace(DEFAULT, max_num_seqs=N, enforce_eager=False)
    found, _ = measure(planned(tuple(STAGES), DEFAULT, tuned, N), conditions(), lambda environment: child, quiet)
    same = {each.stage: each.same_as for each in found}
    assert same == {
        "padded": None,
        "static": None,
        "dynamic": None,
        "batching": "dynamic",
        "memory-layout": "dynamic",
        "tuned": None,
    }
    assert len(child.opened) == 2
