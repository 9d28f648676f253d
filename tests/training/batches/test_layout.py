"""Layouts: everything asked for is in them once, and they are the cheapest of their kind."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("numpy")

import numpy as np

from ascent.memory.cost import CostModel, cost_model
from ascent.memory.widths import bucket, exact, few_rows
from ascent.training.batches.passes.cutting import cut_into_passes
from ascent.training.batches.passes.equal_rows import PromptGroup, distinct_rows, prompt_groups
from ascent.training.batches.passes.layout import CachedPass, Layout, Limits, RowPass, cached, plain, shared_rows
from ascent.training.batches.passes.sequences import HostBatch, read_sequences

SMALL = SimpleNamespace(hidden_size=256, num_attention_heads=4, intermediate_size=768)
COST = cost_model(SMALL)
FREE = Limits(exact)


def random_groups(seed: int, groups: int = 5) -> list[PromptGroup]:
    chance, made, member = random.Random(seed), list[PromptGroup](), 0
    for _ in range(groups):
        count = chance.randint(1, 9)
        lengths = tuple(chance.randint(1, 60) for _ in range(count))
        made.append(PromptGroup(chance.randint(1, 300), tuple(range(member, member + count)), lengths))
        member += count
    return made


def rows_of(layout: Layout) -> list[Any]:
    return [row for one in layout.passes if isinstance(one, RowPass) for row in one.rows]


def of_members(groups: list[PromptGroup]) -> dict[int, tuple[int, int, int]]:
    """Member -> number of its group, prompt's length, completion's length."""
    return {
        member: (number, group.prompt_length, length)
        for number, group in enumerate(groups)
        for member, length in zip(group.members, group.completion_lengths, strict=True)
    }


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("lay_out", [plain, shared_rows])
@pytest.mark.parametrize(
    "limits",
    [
        *(FREE, Limits(bucket), Limits(exact, one_pass=True), Limits(exact, tokens=900)),
        *(Limits(bucket, rows=few_rows), Limits(bucket, one_pass=True, rows=few_rows)),
        Limits(exact, tokens=900, rows=few_rows),
    ],
)
def test_each_sequence_stands_in_one_row_behind_its_prompt(seed: int, lay_out: Any, limits: Limits) -> None:
    groups = random_groups(seed)
    known, layout = of_members(groups), lay_out(groups, COST, limits)
    assert sorted(member for row in rows_of(layout) for member in row.members) == sorted(known)
    for one in layout.passes:
        assert max(row.width for row in one.rows) <= one.width
        assert one.masked or all(len(row.members) == 1 for row in one.rows)
        assert one.height == limits.rows(len(one.rows))
        if limits.tokens:
            assert len(one.rows) == 1 or one.height * one.width <= limits.tokens
        for row in one.rows:
            ((_, prompt_length),) = {known[member][:2] for member in row.members}
            assert row.width == prompt_length + sum(known[member][2] - 1 for member in row.members)
    assert layout.tokens == sum(one.height * one.width for one in layout.passes)
    if limits.one_pass:
        assert len(layout.passes) == 1


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limits", [FREE, Limits(bucket), Limits(exact, tokens=900), Limits(bucket, rows=few_rows)])
def test_each_completion_goes_on_once_from_its_prompt(seed: int, limits: Limits) -> None:
    groups = random_groups(seed)
    known, firsts, continued = of_members(groups), list[int](), list[int]()
    for one in cached(groups, COST, limits).passes:
        assert isinstance(one, CachedPass)
        for first, members in zip(one.prompts, one.firsts, strict=True):
            assert known[first][1] <= one.prompt_width
            assert {known[member][0] for member in members} == {known[first][0]}
            firsts += members
        for part in one.continuations:
            for member, prompt in zip(part.members, part.prompts, strict=True):
                assert member in one.firsts[prompt]
                assert known[member][2] - 1 <= part.width
                continued.append(member)
    assert sorted(firsts) == sorted(known)
    assert sorted(continued) == sorted(member for member, (_, _, length) in known.items() if length > 1)


@pytest.mark.parametrize("seed", range(20))
def test_cuts_are_the_cheapest_there_are(seed: int) -> None:
    chance = random.Random(seed)
    widths = sorted((chance.randint(1, 200) for _ in range(9)), reverse=True)
    extra = [chance.random() for _ in widths] if seed % 2 else None
    start, most = chance.choice([0.0, 50.0, 1000.0]), chance.choice([None, 400])
    height = chance.choice([exact, few_rows])

    def price(rows: int, width: int) -> float:
        return rows * (width + 0.01 * width * width)

    def total(parts: list[range]) -> float:
        cost = 0.0
        for part in parts:
            width, rows = widths[part[0]], height(len(part))
            if most is not None and rows > 1 and rows * width > most:
                return float("inf")
            cost += start + price(rows, width) + width * sum(extra[place] for place in part if extra)
        return cost

    def all_cuts() -> Any:
        for ends in itertools.product([False, True], repeat=len(widths) - 1):
            borders = [0, *(place + 1 for place, end in enumerate(ends) if end), len(widths)]
            yield [range(*pair) for pair in itertools.pairwise(borders)]

    found = cut_into_passes(widths, extra, price, start, most, height)
    assert [place for cut in found for place in cut.places] == list(range(len(widths)))
    assert [cut.width for cut in found] == [widths[cut.places[0]] for cut in found]
    assert total([cut.places for cut in found]) == pytest.approx(min(total(parts) for parts in all_cuts()))


def test_nothing_to_lay_out_is_no_pass() -> None:
    for lay_out in (plain, shared_rows, cached):
        for limits in (FREE, Limits(exact, one_pass=True)):
            assert lay_out([], COST, limits).passes == ()


def group(prompt: int, length: int, count: int) -> list[PromptGroup]:
    return [PromptGroup(prompt, tuple(range(count)), (length,) * count)]


def test_what_is_dear_depends_on_the_lengths() -> None:
    def costs(groups: list[PromptGroup]) -> tuple[float, float, float]:
        return tuple(lay_out(groups, COST, FREE).cost for lay_out in (plain, shared_rows, cached))  # type: ignore[return-value]

    alone, rows, cache = costs(group(800, 20, 8))  # long prompt, short completions
    assert rows < 0.4 * alone
    assert cache < 0.4 * alone
    alone, rows, cache = costs(group(2000, 1000, 16))  # both long: the square of a row of all is too dear
    assert len(rows_of(shared_rows(group(2000, 1000, 16), COST, FREE))) > 1
    assert cache < 0.8 * min(alone, rows)
    alone, rows, cache = costs(group(2, 1000, 8))  # nothing to share
    assert rows == pytest.approx(alone, rel=0.01)
    assert cache > alone


def test_rows_of_a_group_are_about_equally_wide() -> None:
    lengths = (900, 800, 500, 400, 300, 200, 100, 100)
    rows = rows_of(shared_rows([PromptGroup(900, tuple(range(8)), lengths)], CostModel(1.0, 0.001, 0.0, 0.0), FREE))
    assert 1 < len(rows) < 8
    assert max(row.width for row in rows) - min(row.width for row in rows) <= 200


def test_beyond_a_window_each_sequence_has_its_own_row() -> None:
    limits = Limits(exact, window=820)
    assert len(rows_of(shared_rows(group(800, 21, 8), COST, limits))) < 8
    assert len(rows_of(shared_rows(group(800, 22, 8), COST, limits))) == 8


def test_in_one_pass_a_window_keeps_all_rows_plain() -> None:
    """A mask of our own would take the window from the rows that need it."""
    groups = [PromptGroup(800, (0, 1), (9, 9)), PromptGroup(900, (2, 3), (9, 9))]
    (one,) = shared_rows(groups, COST, Limits(exact, one_pass=True, window=850)).passes
    assert isinstance(one, RowPass)
    assert not one.masked


def test_buckets_are_few_and_waste_little() -> None:
    found = [bucket(n) for n in range(1, 16385)]
    assert len(set(found)) <= 41
    assert all(n <= size for n, size in enumerate(found, 1))
    assert all(size < 1.25 * n for n, size in enumerate(found, 1) if n > 16)
    assert all(bucket(size) == size for size in found)
    assert found == sorted(found)


def test_numbers_of_rows_are_few_and_waste_little() -> None:
    found = [few_rows(n) for n in range(1, 513)]
    assert sorted(set(found))[:8] == [1, 2, 3, 4, 6, 8, 12, 16]
    assert len(set(found)) <= 18
    assert all(n <= size < 1.5 * n for n, size in enumerate(found, 1))
    assert all(few_rows(size) == size for size in found)
    assert found == sorted(found)


def test_equal_rows_and_shared_prompts_are_found() -> None:
    rows: list[Any] = [([1, 2], [3]), ([1], [2, 3]), ([1, 2], [3]), ([1, 2], []), ([1, 2], [4, 5]), ([1], [2, 3])]
    ids, mask = np.zeros((6, 4), np.int64), np.zeros((6, 4), np.bool_)
    for row, (prompt, completion) in enumerate(rows):
        ids[row, 2 - len(prompt) : 2 + len(completion)] = prompt + completion
        mask[row, 2 - len(prompt) : 2 + len(completion)] = True
    sequences = read_sequences(HostBatch(ids, mask), 2)
    assert sequences is not None
    assert [(list(p), list(c)) for p, c in zip(sequences.prompts, sequences.completions, strict=True)] == rows
    distinct = distinct_rows(sequences)
    assert list(distinct.rows_U) == [0, 1, 3, 4]
    assert list(distinct.kind_B) == [0, 1, 0, 2, 3, 1]
    assert prompt_groups(sequences, distinct) == (PromptGroup(2, (0, 3), (1, 2)), PromptGroup(1, (1,), (2,)))


@pytest.mark.parametrize(
    "mask",
    [
        [[0, 0, 1, 1]],  # no prompt
        [[1, 0, 1, 1]],  # a prompt padded on the right
        [[1, 1, 0, 1]],  # a hole
        [[0, 1, 1, 0], [1, 0, 1, 0]],  # one of two rows
    ],
)
def test_other_masks_than_trls_are_not_read(mask: list[list[int]]) -> None:
    mask_BT = np.asarray(mask, np.bool_)
    assert read_sequences(HostBatch(np.ones(mask_BT.shape, np.int64), mask_BT), 2) is None
