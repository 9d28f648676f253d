"""A time as people write it."""

from __future__ import annotations

import re

from ascent.errors import InputError

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """Seconds of `90s`, `10m`, `1.5h` or `90`. Raises InputError for anything else, and for none at all."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or float(match[1]) == 0.0:
        raise InputError(f"--budget {text}: expected a time such as 90s, 10m or 1h")
    return float(match[1]) * _SECONDS[match[2]]
