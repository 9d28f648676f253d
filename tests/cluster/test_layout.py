"""Where everything of a run stands: what holds for any cluster, what is refused, and what is said to fit fits."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.cluster.layout import lay_out, lay_out_after_loss, smaller, wanted
from ascent.cluster.nodes import Node, by_hand, in_order
from ascent.cluster.places import JudgePlace, Layout, ReplicaPlace, TrainingPlace, Wanted
from ascent.cluster.refusal import DoesNotFitError
from ascent.config import RunConfig
from ascent.errors import InputError

COMMON = settings(max_examples=200, deadline=None)


def cluster(*devices: int, cpus: int = 32, kind: str = "npu") -> list[Node]:
    return [Node(f"id{n}", f"10.0.0.{n + 1}", cpus, each, kind) for n, each in enumerate(devices)]


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    """Up to seven nodes of one kind, of several sizes; some without accelerators; addresses in any order, some shared,
    as those of fake nodes on one machine are."""
    kind = draw(st.sampled_from(["npu", "cuda", "cpu"]))
    count = draw(st.integers(1, 7))
    nodes = []
    for number in range(count):
        devices = 0 if kind == "cpu" else draw(st.sampled_from([0, 1, 2, 4, 7, 8, 16]))
        address = draw(st.sampled_from(["10.0.0.2", "10.0.0.10", "9.1.1.1", "fd00::1", f"10.1.0.{number}"]))
        cpus = draw(st.integers(0, 24))
        nodes.append(
            Node(f"{draw(st.integers(0, 999)):03}-{number}", address, cpus, devices, kind if devices else "cpu")
        )
    return nodes


wishes = st.builds(
    Wanted,
    ranks=st.integers(0, 24),
    replicas=st.integers(0, 6),
    tensor_parallel=st.sampled_from([1, 2, 3, 4, 8]),
    judges=st.booleans(),
    judge_cpus=st.none() | st.integers(1, 6),
    accumulation=st.integers(1, 6),
    min_nodes=st.none() | st.integers(1, 3),
)


def laid_out(nodes: Sequence[Node], wish: Wanted) -> Layout | None:
    try:
        return lay_out(nodes, wish)
    except InputError:
        return None


def all_places(made: Layout) -> list[TrainingPlace | ReplicaPlace | JudgePlace]:
    return [*made.training, *made.replicas, *made.judges]


def check_places(made: Layout, nodes: Sequence[Node], wish: Wanted) -> None:
    """What must hold of any layout."""
    assert made.ranks == wish.ranks
    assert len(made.replicas) == wish.replicas
    # ranks count on from node to node, in the order of the nodes, as many on each
    firsts = [place.first_rank for place in made.training]
    assert firsts == list(itertools.accumulate([0, *(place.ranks for place in made.training)]))[:-1]
    assert len({place.ranks for place in made.training}) <= 1
    order = [node.id for node in in_order(nodes)]
    for part in (TrainingPlace, ReplicaPlace, JudgePlace):
        at = [order.index(place.node.id) for place in all_places(made) if isinstance(place, part)]
        assert at == sorted(at)
    assert [place.number for place in made.replicas] == list(range(wish.replicas))
    for node in nodes:
        used = [device for place in made.training if place.node.id == node.id for device in place.devices]
        used += [device for place in made.replicas if place.node.id == node.id for device in place.devices]
        assert sorted(used) == list(range(len(used)))  # none twice, no gap
        processes = made.processes(node)
        assert processes <= node.count(made.kind)
        assert len(used) == (0 if made.kind == "cpu" else processes)
        bundles = [place.bundle for place in all_places(made) if place.node.id == node.id]
        assert sum(bundle["CPU"] for bundle in bundles) <= node.cpus  # Ray would wait for ever for more
        assert sum(bundle.get("NPU", 0) + bundle.get("GPU", 0) for bundle in bundles) <= node.devices
    if wish.judges:
        assert made.judges
        assert all(place.cpus >= 1 for place in made.judges)
    trains = {place.node.id for place in made.training}
    assert not trains & {node.id for node in made.spare}
    for place in made.replicas:
        assert place.tensor_parallel == wish.tensor_parallel


@COMMON
@given(clusters(), wishes)
def test_places_hold(nodes: list[Node], wish: Wanted) -> None:
    made = laid_out(nodes, wish)
    if made is not None:
        check_places(made, nodes, wish)


@COMMON
@given(clusters(), wishes, st.integers(0, 2**32))
def test_order_of_nodes_changes_nothing(nodes: list[Node], wish: Wanted, seed: int) -> None:
    other = list(nodes)
    random.Random(seed).shuffle(other)
    assert laid_out(nodes, wish) == laid_out(other, wish)


@COMMON
@given(clusters(), wishes)
def test_refused_only_what_no_choice_of_nodes_holds(nodes: list[Node], wish: Wanted) -> None:
    """Against a search of all choices of training nodes."""
    wish = replace(wish, judges=False, min_nodes=None)
    kind = next((node.kind for node in nodes if node.devices), "cpu")
    size = wish.tensor_parallel

    def holds(chosen: Sequence[Node], each: int) -> bool:
        left = {node.id: node.count(kind) for node in nodes} | {node.id: node.count(kind) - each for node in chosen}
        return min(left.values()) >= 0 and sum(room // size for room in left.values()) >= wish.replicas

    counts = [count for count in range(1, len(nodes) + 1) if wish.ranks % count == 0] if wish.ranks else [0]
    possible = any(
        holds(chosen, wish.ranks // count if count else 0)
        for count in counts
        for chosen in itertools.combinations(nodes, count)
    )
    assert (laid_out(nodes, wish) is not None) == possible


@COMMON
@given(clusters(), wishes)
def test_what_is_said_to_fit_fits(nodes: list[Node], wish: Wanted) -> None:
    wish = replace(wish, min_nodes=None)
    try:
        lay_out(nodes, wish)
    except DoesNotFitError as error:
        for said in error.would_fit:
            lay_out(nodes, applied(wish, said))


def applied(wish: Wanted, said: str) -> Wanted:
    """What is wanted, with the settings of a refusal."""
    fields = {"--devices": "ranks", "cluster.nodes": "nodes", "rollout.replicas": "replicas", "--replicas": "replicas"}
    fields |= {"rollout.tensor_parallel_size": "tensor_parallel", "-tp": "tensor_parallel"}
    fields |= {"cluster.judge_cpus": "judge_cpus"}
    found = re.findall(r"(--?[a-z]+|[a-z]+\.[a-z_]+)[ =](\d+)", said)
    assert found, said
    changes: dict[str, Any] = {fields[name]: int(value) for name, value in found}
    return replace(wish, **changes)


def test_addresses_count_as_numbers() -> None:
    nodes = [Node(name, address, 8, 1, "npu") for name, address in (("a", "10.0.0.10"), ("b", "10.0.0.9"))]
    made = lay_out(nodes, Wanted(ranks=2))
    assert [place.node.address for place in made.training] == ["10.0.0.9", "10.0.0.10"]


def test_ranks_are_on_as_few_nodes_as_hold_equal_shares() -> None:
    assert [place.ranks for place in lay_out(cluster(8, 8, 8), Wanted(ranks=16)).training] == [8, 8]
    assert [place.ranks for place in lay_out(cluster(4, 4, 4), Wanted(ranks=6)).training] == [3, 3]
    assert [place.ranks for place in lay_out(cluster(8, 4), Wanted(ranks=8)).training] == [8]


def test_servers_stand_apart_from_training_where_there_is_room() -> None:
    made = lay_out(cluster(4, 4, 4), Wanted(ranks=2, nodes=1, replicas=2, tensor_parallel=2))
    assert {place.node.id for place in made.replicas} == {"id1"}
    assert [node.id for node in made.spare] == ["id2"]


def test_training_leaves_the_only_node_that_holds_a_wide_server() -> None:
    made = lay_out(cluster(8, 4), Wanted(ranks=4, replicas=1, tensor_parallel=8))
    assert made.training[0].node.devices == 4
    assert made.replicas[0].devices == tuple(range(8))


def test_a_node_without_accelerators_judges_only() -> None:
    nodes = [*cluster(2, 2), Node("head", "10.0.0.200", 16, 0, "cpu")]
    made = lay_out(nodes, Wanted(ranks=4))
    assert [place.cpus for place in made.judges if place.node.id == "head"] == [8]
    assert "head" not in {place.node.id for place in made.training}


def test_more_nodes_train_where_fewer_leave_no_core_to_judge() -> None:
    nodes = [Node("a", "10.0.0.1", 3, 2, "npu"), Node("b", "10.0.0.2", 0, 2, "npu")]
    made = lay_out(nodes, Wanted(ranks=2, judge_cpus=2))
    assert [place.ranks for place in made.training] == [1, 1]
    assert [(place.node.id, place.cpus) for place in made.judges] == [("a", 2)]


def test_a_run_on_cpu_leaves_accelerators_alone() -> None:
    made = lay_out(cluster(8, 8, cpus=4), Wanted(ranks=4, kind="cpu"))
    assert [place.devices for place in made.training] == [()]
    assert made.training[0].bundle == {"CPU": 4.0}


def test_two_kinds_of_accelerators_are_refused() -> None:
    with pytest.raises(InputError, match="cuda and npu"):
        lay_out([*cluster(8), Node("x", "10.0.0.9", 8, 8, "cuda")], Wanted(ranks=8))


@pytest.mark.parametrize(
    ("nodes", "wish", "words"),
    [
        ([], Wanted(ranks=1), "no node"),
        (cluster(4), Wanted(ranks=8), "8 npu each; 0 of 1"),
        (
            cluster(4, 4, 4),
            Wanted(ranks=8, replicas=2, tensor_parallel=4),
            "beside the training there is room for 1 of 2",
        ),
        (cluster(4, 4), Wanted(ranks=0, replicas=1, tensor_parallel=8), "-tp 4"),
        (cluster(2, cpus=2), Wanted(ranks=2), "no node has 1 core left"),
        (cluster(4, 4), Wanted(ranks=7, nodes=2), "--devices 6 or 8"),
        (cluster(8, 8), Wanted(ranks=16, nodes=2, min_nodes=3), "more than cluster.nodes=2"),
        (cluster(8, 8, 8), Wanted(ranks=24, min_nodes=2), "multiple of 2"),
        ([*cluster(8), *cluster(8)], Wanted(ranks=8), "listed 2 times"),
        ([Node("a", "node-a", 8, 8, "npu")], Wanted(ranks=8), "no IP address"),
    ],
)
def test_refusals_say_what_is_wrong(nodes: list[Node], wish: Wanted, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        lay_out(nodes, wish)


def test_a_lost_node_is_replaced_by_a_spare_then_done_without() -> None:
    nodes = cluster(8, 8, 8, 8)
    wish = Wanted(ranks=24, nodes=3, min_nodes=1, accumulation=2)
    before = lay_out(nodes, wish)
    assert lay_out_after_loss(nodes[1:], wish, before).ranks == 24
    two = lay_out_after_loss(nodes[2:], wish, before)
    assert (two.ranks, len(two.training)) == (16, 2)
    one = lay_out_after_loss(nodes[3:], wish, two)
    assert one.ranks == 8
    assert lay_out_after_loss(nodes, wish, one).ranks == 24  # those that came back train again


def test_without_min_nodes_a_run_needs_them_all() -> None:
    wish = Wanted(ranks=16)
    before = lay_out(cluster(8, 8), wish)
    with pytest.raises(DoesNotFitError, match="16 training processes"):
        lay_out_after_loss(cluster(8), wish, before)


@COMMON
@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 12), st.integers(1, 6))
def test_fewer_ranks_make_the_same_global_batch(count: int, each: int, accumulation: int, least: int) -> None:
    wish = Wanted(ranks=count * each, nodes=count, min_nodes=min(least, count), accumulation=accumulation, judges=False)
    made = laid_out(cluster(*[each] * count), wish)
    for fewer in smaller(wish, made) if made else []:
        assert wish.ranks * accumulation % fewer.ranks == 0
        assert fewer.ranks < wish.ranks


def test_wanted_is_read_from_a_configuration() -> None:
    config = RunConfig.model_validate(
        {
            "model": {"path": "m"},
            "rollout": {"mode": "server", "replicas": 3, "tensor_parallel_size": 2},
            "cluster": {"nodes": 4, "min_nodes": 2, "judge_cpus": 5},
            "trainer": {"gradient_accumulation_steps": 6, "steps_per_generation": 4},
        }
    )
    assert wanted(config, 8) == Wanted(8, 4, 2, 3, 2, True, 5, 2)
    theirs = config.model_copy(update={"rollout": config.rollout.model_copy(update={"server": "policy"})})
    assert wanted(theirs, 8).replicas == 0


def test_nodes_by_hand() -> None:
    made = by_hand(["2x8:npu", "1x4:cuda:12", "1x16:cpu"])
    assert [(node.devices, node.cpus, node.kind) for node in made] == [
        (8, 128, "npu"),
        (8, 128, "npu"),
        (4, 12, "cuda"),
        (0, 16, "cpu"),
    ]
    assert [node.address for node in made] == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]


@pytest.mark.parametrize("wrong", ["", "8", "4x8", "0x8:npu", "4x0:npu", "4x8:tpu", "99999x8:npu", "2x8:cpu:4"])
def test_nodes_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(InputError, match="--nodes"):
        by_hand([wrong])
