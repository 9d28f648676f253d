"""What is equal, within tolerance or changed, of records made of numbers."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from tests.bench.regress.made_records import (
    CONTINUATION,
    PROMPTS,
    REFERENCE,
    SPEED,
    a_record,
    a_run,
    prompt_run,
    sampled,
)

from ascent.bench.regress.compare import Comparison, compare
from ascent.bench.regress.measure import FIGURES, PromptRun, SampledFigure, Speed
from ascent.bench.regress.plan import SAMPLINGS, Asked, Question
from ascent.bench.regress.report import Compared
from ascent.errors import InputError

LOGPS = prompt_run().logps[0]


def against(first: PromptRun, **head: Any) -> Comparison:
    """A usual record against one whose first prompt is `first`."""
    prompts = [first, *[prompt_run()] * (PROMPTS - 1)]
    return compare(a_record(), a_record([a_run(prompts)] * 5, **head))


def moved(by: float, *, passes: int = 3) -> PromptRun:
    """Log-probabilities of one token moved, in some of the passes."""
    other = (LOGPS[0] + by, *LOGPS[1:])
    return prompt_run(logps=(LOGPS,) * (3 - passes) + (other,) * passes)


def test_the_same_is_equal() -> None:
    found = compare(a_record(), a_record())
    assert found.verdict == "equal"
    assert {each.verdict for each in found.prompts} == {"equal"}
    assert Compared(found).to_text().endswith("\nequal")
    assert found.good


@pytest.mark.parametrize(("by", "verdict"), [(1e-5, "within tolerance"), (1e-3, "changed"), (-0.5, "changed")])
def test_one_log_probability(by: float, verdict: str) -> None:
    found = against(moved(by))
    assert (found.prompts[0].verdict, found.verdict) == (verdict, verdict)
    assert {each.verdict for each in found.prompts[1:]} == {"equal"}


def test_what_is_no_number_is_changed() -> None:
    found = against(moved(math.nan))
    assert found.prompts[0].verdict == "changed"
    assert "nan" in Compared(found).to_text()
    assert Compared(found).to_json()["prompts"][0]["mean"] == "nan"


def test_a_new_version_whose_runs_differ_among_themselves_is_changed() -> None:
    """Even where their mean is near the record's."""
    noisy = prompt_run(logps=((LOGPS[0] + 0.5, *LOGPS[1:]), LOGPS, (LOGPS[0] - 0.5, *LOGPS[1:])))
    found = against(noisy)
    assert found.prompts[0].verdict == "changed"
    assert "between runs of the new version" in found.prompts[0].why[0]


def test_tolerance_is_learned_from_the_old_runs() -> None:
    """The noise of one prompt is allowed to all: each has seen few passes."""
    noisy = a_record([a_run([moved(0.01, passes=1), *[prompt_run()] * (PROMPTS - 1)])] * 5)
    later = a_record([a_run([prompt_run(), moved(0.02), *[prompt_run()] * (PROMPTS - 2)])] * 5)
    found = compare(noisy, later)
    assert found.tolerance.largest > 0.02
    assert [each.verdict for each in found.prompts[:2]] == ["equal", "within tolerance"]
    assert compare(a_record(), later).prompts[1].verdict == "changed"


def greedy(*ids: int) -> PromptRun:
    return prompt_run(greedy=(ids,) * 3)


def test_a_near_tie_may_fall_otherwise() -> None:
    found = against(greedy(11, 12, 103, 9)).prompts[0]
    assert found.verdict == "within tolerance"
    assert found.divergence is not None
    assert (found.divergence.place, found.divergence.was, found.divergence.now) == (2, "<13>", "<103>")
    assert found.divergence.near_tie
    assert found.divergence.margin == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize(
    ("ids", "place", "at_least"),
    [((11, 102, 13, 14), 1, False), ((11, 77, 13, 14), 1, True), ((11, 12, 77, 14), 2, True), ((11, 12), 2, True)],
)
def test_another_token_is_a_change(ids: tuple[int, ...], place: int, at_least: bool) -> None:
    """Also in a near tie's place, when it isn't one of the two."""
    found = against(greedy(*ids)).prompts[0]
    assert found.verdict == "changed"
    assert found.divergence is not None
    assert (found.divergence.place, found.divergence.at_least) == (place, at_least)
    assert found.why == (found.divergence.in_words(),)


def test_a_change_is_not_hidden_by_a_near_tie_of_another_pass() -> None:
    both = prompt_run(greedy=((11, 12, 103, 9), (11, 12, 13, 77), REFERENCE))
    found = against(both).prompts[0]
    assert found.verdict == "changed"
    assert found.divergence is not None
    assert found.divergence.place == 3


def test_what_the_old_version_did_as_well_is_no_change() -> None:
    old = a_record([a_run([prompt_run(greedy=(REFERENCE, (11, 77, 1, 1), REFERENCE))])])
    same = a_record([a_run([greedy(11, 77, 1, 1)])])
    later = a_record([a_run([greedy(11, 77, 1, 2)])])
    assert compare(old, same).prompts[0].verdict == "equal"
    found = compare(old, later).prompts[0]
    assert found.verdict == "within tolerance"
    assert found.divergence is not None
    assert found.divergence.near_tie


def test_records_with_references_of_their_own_are_compared_as_far_as_they_agree() -> None:
    """Two files: each has log-probabilities of its own greedy completion."""
    other = prompt_run(
        reference=(11, 12, 103, 9), greedy=((11, 12, 103, 9),) * 3, logps=((*LOGPS[:4], -0.70001, -5.0),) * 3
    )
    found = compare(a_record([a_run([prompt_run()])]), a_record([a_run([other])])).prompts[0]
    assert found.verdict == "within tolerance"
    assert found.largest == 0


def test_a_tokenizer_that_makes_other_tokens() -> None:
    now = {"p1": Question((1, 9, 4), CONTINUATION)}
    found = compare(a_record(), a_record(), now)
    assert found.prompts[0].verdict == "equal"
    assert found.prompts[1].verdict == "changed"
    assert found.prompts[1].why == ("the tokenizer makes other tokens of the prompt, from token 1 on",)


def with_samples(seed: int, shift: float = 0.0, count: int = PROMPTS) -> Any:
    draw = random.Random(seed)
    return a_record([a_run([prompt_run(sampled=sampled(draw, shift)) for _ in range(count)]) for _ in range(2)])


def test_sampling_that_shifted_is_told_and_chance_is_not() -> None:
    for seed in range(5):
        assert compare(with_samples(2 * seed), with_samples(2 * seed + 1)).verdict == "within tolerance"
    found = compare(with_samples(0), with_samples(1, shift=0.3))
    assert found.verdict == "changed"
    assert {each.verdict for each in found.prompts} == {"equal"}
    assert len(found.sampled) == 3 * len(SAMPLINGS)
    assert "sampling at temperature 0.7: mean log-probability" in Compared(found).to_text()


def test_samples_without_numbers_are_a_change() -> None:
    broken = {setting: dict.fromkeys(FIGURES, SampledFigure(math.nan, math.nan)) for setting in SAMPLINGS}
    found = compare(with_samples(0), a_record([a_run([prompt_run(sampled=broken)] * PROMPTS)] * 2))
    assert {each.verdict for each in found.sampled} == {"changed"}
    assert "nan" in Compared(found).to_text()


def test_sampling_of_few_prompts_is_said_to_be_unknown() -> None:
    found = compare(with_samples(0, count=5), with_samples(1, shift=3.0, count=5))
    assert {each.verdict for each in found.sampled} == {"unknown"}
    assert "too few prompts" in Compared(found).to_text()


def at_speed(*speeds: float, **changed: Any) -> Any:
    return a_record([a_run(speed=replace(SPEED, tokens_per_second=speed, **changed)) for speed in speeds])


@pytest.mark.parametrize(
    ("factor", "verdict", "good"),
    [(1.0, "equal", True), (0.95, "within tolerance", True), (0.7, "changed", False), (1.5, "better", True)],
)
def test_speed(factor: float, verdict: str, good: bool) -> None:
    old = [1000.0, 1010.0, 990.0, 1005.0, 995.0]
    found = compare(at_speed(*old), at_speed(*(each * factor for each in old)))
    assert (found.speed[0].verdict, found.good) == (verdict, good)
    ignoring = compare(at_speed(*old), at_speed(*(each * factor for each in old)), ignored=["speed"])
    assert ignoring.good
    assert ignoring.speed[0].verdict == verdict


def test_speed_says_nothing_where_it_can_t() -> None:
    old, slow = [1000.0, 1010.0, 990.0, 1005.0, 995.0], [500.0, 505.0, 495.0, 502.0, 498.0]
    busy = compare(at_speed(*old), at_speed(*slow, others=0.4))
    assert (busy.speed[0].verdict, busy.good) == ("unknown", True)
    assert "others used 40% of the processors" in busy.speed[0].why
    elsewhere = compare(at_speed(*old), a_record(environment={"device": "another card"}))
    assert elsewhere.speed[0].why == "measured on different devices"
    assert compare(at_speed(1000.0), at_speed(500.0)).speed[0].verdict == "unknown"
    wild = compare(at_speed(1000.0, 300.0), at_speed(500.0, 900.0)).speed[0]
    assert wild.verdict == "unknown"
    assert "make more" in wild.why


def with_memory(*sizes: int | None) -> Any:
    return a_record([a_run(speed=Speed(1000.0, size, 0.0)) for size in sizes])


def test_memory() -> None:
    before = with_memory(*[2**30] * 5)
    assert compare(before, with_memory(*[2**30 + 2**20] * 5)).speed[1].verdict == "within tolerance"
    assert compare(before, with_memory(*[2**30 + 2**28] * 5)).speed[1].verdict == "changed"
    assert compare(before, with_memory(*[2**29] * 5)).speed[1].verdict == "better"
    assert compare(before, with_memory(None, None)).speed[1].verdict == "unknown"


def test_records_that_can_t_be_compared() -> None:
    with pytest.raises(InputError, match="not asked the same"):
        compare(a_record(), a_record(asked=Asked(samples=9)))
    other = a_record()
    fewer = compare(a_record(), replace(other, prompts=other.prompts[1:]))
    assert fewer.missing == ("p0",)
    assert "in one of the two only: p0" in Compared(fewer).to_text()
    renamed = replace(other, prompts=tuple(replace(each, id=f"q{each.id}") for each in other.prompts))
    with pytest.raises(InputError, match="no prompt in common"):
        compare(a_record(), renamed)
    reworded = replace(other, prompts=(replace(other.prompts[0], text="another"), *other.prompts[1:]))
    with pytest.raises(InputError, match="prompt p0 is another text"):
        compare(a_record(), reworded)


def test_what_differs_around_it_is_told() -> None:
    found = compare(a_record(vllm="0.23.0"), a_record(vllm="0.31.0", environment={"device": "a card", "torch": "2.1"}))
    assert found.environment == {"vLLM": ("0.23.0", "0.31.0"), "torch": ("2.0", "2.1")}
    assert "vLLM 0.23.0 -> 0.31.0, torch 2.0 -> 2.1" in Compared(found).to_text()
