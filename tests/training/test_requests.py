"""Groups and seeds don't depend on how a batch is spread over processes."""

from __future__ import annotations

import pytest

from ascent.training.step.groups import LocalGroup, group_requests
from ascent.types import Sampling

SAMPLING = Sampling(8)
PROMPTS = [[1, 2]] * 4 + [[3]] * 4 + [[3]] * 4


def samples(groups: list[LocalGroup]) -> dict[tuple[str, int], tuple[tuple[int, ...], int]]:
    """(group, place in it) -> prompt and seed of every completion."""
    found = {}
    for group in groups:
        assert group.request.seed is not None
        for index in range(group.request.n):
            place = (group.request.group_id, group.offset + index)
            found[place] = (group.request.prompt_ids, group.request.seed + index)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
def test_the_same_samples_on_any_number_of_ranks(ranks: int) -> None:
    whole = samples(group_requests(PROMPTS, 4, SAMPLING, label="7", seed=5))
    size = len(PROMPTS) // ranks
    spread: dict[tuple[str, int], tuple[tuple[int, ...], int]] = {}
    for rank in range(ranks):
        part = group_requests(PROMPTS[rank * size :][:size], 4, SAMPLING, label="7", rank=rank, seed=5)
        assert part[0].first == 0
        assert sum(group.request.n for group in part) == size
        spread |= samples(part)
    assert spread == whole
    assert len({seed for _, seed in whole.values()}) == len(PROMPTS), "two completions share a seed"


def test_neighbouring_groups_with_one_prompt_stay_apart() -> None:
    groups = group_requests(PROMPTS, 4, SAMPLING, label="0", seed=5)
    assert [(group.request.group_id, group.request.n, group.first) for group in groups] == [
        ("0-0", 4, 0),
        ("0-1", 4, 4),
        ("0-2", 4, 8),
    ]


def test_generations_and_runs_have_other_seeds() -> None:
    seeds = {
        group_requests([[1]], 1, SAMPLING, label=label, seed=seed)[0].request.seed
        for label in ("0", "1", "eval-0")
        for seed in (0, 1, 2)
    }
    assert len(seeds) == 9
    assert group_requests([[1]], 1, SAMPLING, label="0")[0].request.seed is None


def test_a_group_of_different_prompts_is_an_error() -> None:
    with pytest.raises(ValueError, match="group 0-0: prompts differ within the group"):
        group_requests([[1], [2]], 2, SAMPLING, label="0")
