"""Settings of an algorithm that stand under `trainer:`: moved to the section `algorithm`, if it is that algorithm's."""

from __future__ import annotations

from functools import cache
from typing import Any

from ascent.config import file as config_file
from ascent.tables import ALGORITHMS
from ascent.tables import load as load_entry


def move(source: config_file.Source, trainer: dict[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """What stays under `trainer`, sentences about what was moved, and problems: a setting of another algorithm than the
    configuration's, or one that stands in both places with two values."""
    owned = owners()
    stays: dict[str, Any] = {}
    notes: list[str] = []
    problems: list[str] = []
    for key, value in trainer.items():
        if key not in owned:
            stays[key] = value
            continue
        place, new = source.place(f"trainer.{key}"), f"algorithm.{key}"
        algorithm = source.values.get("algorithm", "grpo")
        name = algorithm.get("name", "grpo") if isinstance(algorithm, dict) else algorithm
        if name != owned[key]:
            problems.append(
                f"{place}: trainer.{key} is a setting of algorithm={owned[key]}, but the algorithm is {name}: set "
                f"algorithm: {owned[key]}, or leave it out"
            )
            continue
        if not isinstance(algorithm, dict):
            source.values["algorithm"] = algorithm = {"name": name}
        if algorithm.get(key, value) != value:
            problems.append(
                f"{source.place(new)}: {new}={algorithm[key]!r} contradicts trainer.{key}={value!r}; keep one of them"
            )
            continue
        notes.append(f"trainer.{key} is taken for {new}, where it belongs")
        algorithm[key] = value
        source.places.setdefault(new, place)
    return stays, notes, problems


@cache
def owners() -> dict[str, str]:
    """Setting of an algorithm's own -> that algorithm."""
    return {key: name for name in ALGORITHMS for key in load_entry(ALGORITHMS, name).model_fields if key != "name"}
