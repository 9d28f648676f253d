"""Numbers that JSON doesn't have, in the lines of `metrics.jsonl` and `evaluations.jsonl`: as words, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

WORDS = ("nan", "inf", "-inf")


def in_words(content: Any) -> Any:
    """The same with one of `WORDS` for each number that isn't finite."""
    if isinstance(content, Mapping):
        return {name: in_words(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [in_words(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


def in_numbers(content: Any) -> Any:
    """What JSON gives, with numbers for the words of `in_words`."""
    if isinstance(content, dict):
        return {name: in_numbers(value) for name, value in content.items()}
    if isinstance(content, list):
        return [in_numbers(value) for value in content]
    return float(content) if content in WORDS else content
