"""The parts of dynamic sampling by themselves: prompts, signal, history, scoring, and a generation's groups."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Completion, RolloutRequest, Sampling

pytestmark = pytest.mark.torch


@given(rows=st.integers(1, 20), ranks=st.integers(1, 4), seed=st.integers(0, 5), shuffle=st.booleans())
def test_all_ranks_together_draw_each_row_once_in_a_pass(rows: int, ranks: int, seed: int, shuffle: bool) -> None:
    from ascent.training.batches.drawing.prompts import PromptOrder

    orders = [PromptOrder(rows, rank=rank, ranks=ranks, seed=seed, shuffle=shuffle) for rank in range(ranks)]
    drawn = [orders[number % ranks].at(number // ranks) for number in range(3 * rows)]
    for begin in range(0, 3 * rows, rows):
        assert sorted(drawn[begin : begin + rows]) == list(range(rows))
        assert shuffle or drawn[begin : begin + rows] == list(range(rows))
    back = [orders[number % ranks].at(number // ranks) for number in reversed(range(3 * rows))]
    assert back == drawn[::-1], "looking at an earlier pass again changes nothing"


def test_passes_differ_and_so_do_seeds() -> None:
    from ascent.training.batches.drawing.prompts import PromptOrder

    def of(seed: int) -> list[int]:
        order = PromptOrder(50, rank=0, ranks=1, seed=seed, shuffle=True)
        return [order.at(place) for place in range(100)]

    assert of(1) == of(1)
    assert of(1) != of(2)
    assert of(1)[:50] != of(1)[50:]


def test_the_curriculum_passes_over_what_is_always_or_never_solved_but_not_for_ever() -> None:
    from ascent.training.batches.drawing.curriculum import from_the_middle
    from ascent.training.batches.drawing.history import History
    from ascent.training.batches.drawing.prompts import PromptOrder

    shares = {"0": (1.0, 1.0), "1": (0.0, 0.0, 0.0), "2": (0.5, 0.5), "3": (1.0,), "4": (0.0, 1.0)}
    order = PromptOrder(6, rank=0, ranks=1, seed=0, shuffle=True)
    suits = from_the_middle(History(shares), str, 0)
    often = Counter(drawn.index for drawn in order.following(0, 4000, suits))
    assert max(often[other] - often[2] for other in (3, 4, 5)) in (0, 1)
    for extreme in (0, 1):
        assert 0.2 < often[extreme] / often[2] < 0.3
    places = [drawn.place for drawn in order.following(7, 20, suits)]
    assert places == sorted(set(places))
    assert places[0] >= 7


def test_where_nothing_suits_prompts_are_drawn_all_the_same() -> None:
    from ascent.training.batches.drawing.prompts import PromptOrder

    order = PromptOrder(5, rank=0, ranks=1, seed=0, shuffle=True)
    places = [drawn.place for drawn in order.following(3, 3, lambda drawn: False)]
    assert places == [8, 14, 20], "after five that don't suit"


def test_history_tells_what_is_always_and_never_solved() -> None:
    from ascent.training.batches.drawing.history import WINDOW, History, Observation

    history = History().after([Observation("a", (0.1, 0.1), 1.0), Observation("b", (0.0, 0.9), 0.5)])
    history = history.after([Observation("c", (0.1, 0.1), 0.0), Observation("d", ()), Observation("b", (0.1,), 0.0)])
    assert (history.always_solved, history.never_solved) == (1, 1), "of those with verdicts"
    assert history.shares["b"] == (0.5, 0.0)
    assert "d" not in history.shares, "it has no score"
    for _ in range(WINDOW):
        history = history.after([Observation("b", (1.0,), 1.0)])
    assert history.always_solved == 2, "what is long ago is forgotten"


def test_without_verdicts_scores_count_from_the_lowest_to_the_highest() -> None:
    from ascent.training.batches.drawing.history import History, Observation

    silent = History().after([Observation("a", (1.0, 1.0))])
    assert (silent.always_solved, silent.never_solved) == (0, 0), "one score alone says nothing"
    history = silent.after([Observation("a", (3.0, 3.0)), Observation("b", (-1.0, -1.0)), Observation("c", (1.0, 1.0))])
    assert (history.never_solved, history.shares["c"]) == (1, (0.5,))
    assert history.shares["a"][-1] == 1.0


def group_of(number: int, size: int = 2) -> Any:
    from ascent.training.step.groups import LocalGroup

    request = RolloutRequest(f"7-{number}", (1, 2), size, Sampling(4))
    return LocalGroup(request, number * size, 0, {"prompt": f"p{number}", "task_id": f"t{number}"})


def scored(rewards: list[list[float]], number: int = 0) -> Any:
    import torch

    from ascent.training.batches.drawing.scored_group import GroupRewards, ScoredGroup

    return ScoredGroup(group_of(number), number, (), (), GroupRewards(torch.tensor(rewards)))


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.1, 1.0, float("nan")]), min_size=2, max_size=2), min_size=2, max_size=5),
    st.booleans(),
)
def test_a_group_has_signal_exactly_where_trl_gives_an_advantage(rewards: list[list[float]], each: bool) -> None:
    """TRL's formulas, in float64: what it computes in float32 has rounding in place of zeros."""
    import torch

    from ascent.training.batches.drawing.scored_group import Signal

    weights_F = torch.tensor([1.0, 0.3], dtype=torch.float64)
    rewards_GF = torch.tensor(rewards, dtype=torch.float64)
    unscored_G = rewards_GF.isnan().all(dim=1)
    if each:
        mean_F = rewards_GF.nanmean(dim=0, keepdim=True)
        advantages_G = ((rewards_GF - mean_F) * weights_F).nansum(dim=1)
        advantages_G = advantages_G.where((rewards_GF - mean_F).nan_to_num().abs().sum(dim=1) < 1e-9, torch.tensor(1.0))
    else:
        totals_G = (rewards_GF * weights_F).nansum(dim=1)
        totals_G[unscored_G] = torch.nan
        advantages_G = totals_G - totals_G.nanmean()
    expected = bool((advantages_G[~unscored_G].abs() > 1e-9).any())
    signal = Signal(weights_F.float(), each_function=each)
    why = signal.missing(scored(rewards))
    assert (why is None) == expected
    if unscored_G.all():
        assert why is not None
        assert "not scored" in why


def test_work_that_waits_for_its_verdict_holds_up_nothing() -> None:
    from ascent.training.batches.drawing.scoring import Scoring

    scoring: Scoring[str, str] = Scoring(lambda asked: asked)
    verdict = threading.Event()
    scoring.add("slow", [verdict.is_set])
    scoring.add("fast")
    assert scoring.take(wait=10) == ["fast"]
    assert scoring.take(wait=0.02) == []
    verdict.set()
    assert scoring.take(wait=10) == ["slow"]
    scoring.close()


def test_what_became_ready_during_a_call_is_worked_on_together_in_the_next() -> None:
    from ascent.training.batches.drawing.scoring import Scoring

    going = threading.Event()
    calls: list[list[int]] = []

    def work(asked: list[int]) -> list[int]:
        calls.append(asked)
        going.wait(10)
        return asked

    scoring: Scoring[int, int] = Scoring(work)
    scoring.add(1)
    while not calls:
        time.sleep(0.001)
    for number in (2, 3, 4):
        scoring.add(number)
    going.set()
    results: list[int] = []
    while len(results) < 4:
        results += scoring.take(wait=10)
    assert calls == [[1], [2, 3, 4]]
    assert results == [1, 2, 3, 4]
    scoring.close()


def test_what_work_raises_is_raised_where_results_are_taken() -> None:
    from ascent.training.batches.drawing.scoring import Scoring

    known: dict[str, str] = {}
    scoring: Scoring[str, str] = Scoring(lambda asked: [known[each] for each in asked])
    scoring.add("nothing")
    with pytest.raises(KeyError, match="nothing"):
        scoring.take(wait=10)


class Rounds:
    """A round in which group k's two scores are `scores[k]`."""

    def __init__(self, scores: list[tuple[float, float]], needed: int, first: int, in_batches: bool = False) -> None:
        import torch

        from ascent.training.batches.drawing.prompts import Drawn
        from ascent.training.batches.drawing.round import Judging, Round
        from ascent.training.batches.drawing.scored_group import GroupRewards, Signal

        def rewards(questions: Any) -> list[GroupRewards]:
            return [GroupRewards(torch.tensor(scores[int(each.row["prompt"][1:])])[:, None]) for each in questions]

        signal = Signal(torch.ones(1))
        judging = Judging(
            [], rewards, lambda: None, lambda row, each, text: text, signal, in_batches, contextlib.nullcontext
        )
        groups = [group_of(number) for number in range(len(scores))]
        draws = [Drawn(number, number) for number in range(len(scores))]
        self.round = Round(judging, groups, draws, carried=(), first=first, needed=needed)

    def arrive(self, group: Any, index: int) -> None:
        ids = group.request.group_id
        tokens, logps = as_token_ids([5]), as_logps([])
        self.round.arrived(group, Completion(ids, index, (1, 2), tokens, logps, "stop", 0, 0.0, 0.0), "text")


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=4, max_size=8),
    st.integers(1, 3),
    st.integers(0, 1000),
)
def test_how_many_groups_are_drawn_depends_on_the_scores_alone(
    scores: list[tuple[float, float]], needed: int, seed: int
) -> None:
    order = random.Random(seed)
    rounds = Rounds(scores, needed, first=needed)
    flying = [(group, index) for group in rounds.round.first for index in range(2)]
    while not rounds.round.done:
        if flying:
            rounds.arrive(*flying.pop(order.randrange(len(flying))))
        if order.random() < 0.5 or not flying:
            flying += [(group, index) for group in rounds.round.wanted(wait=not flying) for index in range(2)]
    drawn = next(
        (count for count in range(needed, len(scores)) if sum(a != b for a, b in scores[:count]) == needed), len(scores)
    )
    assert rounds.round.asked == drawn
    assert sorted(rounds.round.scored) == list(range(drawn))
    assert set(rounds.round.without_signal) == {number for number in range(drawn) if len(set(scores[number])) == 1}


def test_a_replacement_is_wanted_while_other_groups_are_still_being_sampled() -> None:
    rounds = Rounds([(0.0, 0.0), (1.0, 0.0), (1.0, 0.0)], needed=2, first=2)
    rounds.arrive(rounds.round.first[0], 0)
    rounds.arrive(rounds.round.first[0], 1)
    until = time.monotonic() + 10
    while not (wanted := rounds.round.wanted(wait=False)):
        assert time.monotonic() < until
    assert [group.request.group_id for group in wanted] == ["7-2"]
    assert not rounds.round.done
    rounds.round.forget()
