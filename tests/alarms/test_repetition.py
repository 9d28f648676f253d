"""One token or phrase over and over."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ascent.alarms.repetition import FEWEST_TIMES, FEWEST_TOKENS, LONGEST_PHRASE, repeats

RNG = random.Random(0)


def words(count: int) -> list[int]:
    return [RNG.randrange(30_000) for _ in range(count)]


@pytest.mark.parametrize("phrase", [1, 2, 7, LONGEST_PHRASE])
def test_a_phrase_over_half_of_a_completion_repeats(phrase: int) -> None:
    said = words(phrase) * max(2 * FEWEST_TIMES, 30 // phrase)
    assert repeats(said)
    assert repeats([*words(len(said)), *said]), "the first half is ordinary"
    assert repeats(np.array([*said, *words(len(said) // 2)], np.int32))
    assert not repeats([*words(2 * len(said)), *said]), "most of it is ordinary"


def test_ordinary_text_does_not() -> None:
    assert not repeats([])
    assert not repeats([5] * (FEWEST_TOKENS - 1)), "too short to say"
    assert not repeats(words(2000))
    assert not repeats([RNG.randrange(6) for _ in range(300)]), "few words, in no order"
    assert not repeats(words(20) * 4), "said four times"
    indented = [word for _ in range(40) for word in (7, 7, *words(6))]
    assert not repeats(indented), "lines that begin alike"


def test_a_long_completion_is_looked_at_quickly() -> None:
    import time

    long = np.array(words(32_000), np.int32)
    began = time.process_time()
    assert not repeats(long)
    assert time.process_time() - began < 0.1
