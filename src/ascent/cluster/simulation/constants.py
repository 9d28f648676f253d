"""The constants of a simulation, each with where it is from: assumed, the vendor's, given by hand, or measured here."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.memory.cards import Card
from ascent.tables import nearest

SCHEMA = "ascent.cluster-constants/1"  # of a file of measured ones
_MAY_BE_ZERO = {"slow_share", "inside_us", "between_us"}
_SHARES = {"compute_share", "memory_share", "slow_share"}


@dataclass(frozen=True, slots=True)
class Constants:
    """As `constants.toml` says what each is, in the unit of its name. `tflops` and `memory_gb_s` are one card's, as the
    vendor gives them. `sources`: name -> where the value is from."""

    tflops: float
    memory_gb_s: float
    compute_share: float
    memory_share: float
    inside_gb_s: float
    inside_us: float
    between_gb_s: float
    between_us: float
    bucket_mib: float
    collective_gb_s: float
    collective_chunk_mib: float
    http_gb_s: float
    http_chunk_mib: float
    programs_a_core: float
    slow_share: float
    slow_seconds: float
    sources: Mapping[str, str] = field(default_factory=dict)

    def changed(self, values: Mapping[str, float], source: str) -> Constants:
        """With other values, which are from `source`."""
        return replace(self, **values, sources={**self.sources, **dict.fromkeys(values, source)})


NAMES = tuple(each.name for each in fields(Constants) if each.name != "sources")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was predicted from measured constants and then measured itself. Seconds."""

    what: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """How much more was predicted, as a share of what was measured."""
        return self.predicted / self.measured - 1


def spread(checks: Sequence[Check]) -> str:
    """How far off the predictions are, in a sentence; "" without any."""
    if not checks:
        return ""
    off = sorted(abs(check.error) for check in checks)
    half = off[(len(off) - 1) // 2]
    return f"of {len(off)} predictions half are off by at most {half:.0%}, all by at most {off[-1]:.0%}"


def of_card(card: Card, given: Path | None = None, measured: Path | None = None) -> tuple[Constants, list[Check]]:
    """The defaults for this card, changed by a file of measured ones, then by one of given ones; and the checks that
    the former holds. Raises InputError for a file that isn't one, and where the card's speed isn't known from any."""
    made, checks = defaults(card), []  # type: ignore[var-annotated]
    if measured is not None:
        found, checks = _measured(measured, card)
        made = made.changed(found, f"measured, {measured}")
    if given is not None:
        made = made.changed(_given(given), f"given in {given}")
    if made.tflops <= 0:
        raise InputError(
            f"how fast {card.name} computes isn't known",
            "Give it: --constants FILE, with a line such as tflops = 320 (10^12 operations a second, 16-bit).",
        )
    return made, checks


def defaults(card: Card) -> Constants:
    """What is assumed where nothing was given or measured. `tflops` is 0 for a card whose speed isn't known."""
    text = resources.files(__package__).joinpath("constants.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    entries = {**tables["all"], **tables[card.kind]}
    values = {name: float(entry["value"]) for name, entry in entries.items()}
    sources = {name: str(entry["source"]) for name, entry in entries.items()}
    values |= {"tflops": card.tflops, "memory_gb_s": card.bandwidth / 1e9}
    sources |= dict.fromkeys(("tflops", "memory_gb_s"), f"the vendor's, {card.name}")
    return Constants(**values, sources=sources)


def write_measured(path: Path, values: Mapping[str, float], checks: Sequence[Check], about: Mapping[str, Any]) -> None:
    """A file for `measured`. `about` says on what they were measured."""
    content = {
        "schema": SCHEMA,
        "about": dict(about),
        "constants": dict(values),
        "checks": [{"what": each.what, "predicted": each.predicted, "measured": each.measured} for each in checks],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _given(path: Path) -> dict[str, float]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--constants {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--constants {path}: {error}", "Expected TOML: lines such as between_gb_s = 23.5") from error
    return {name: _checked(name, value, f"--constants {path}") for name, value in content.items()}


def _measured(path: Path, card: Card) -> tuple[dict[str, float], list[Check]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--measured {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"--measured {path}: no JSON ({error})", _WRITES) from error
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA:
        raise InputError(f"--measured {path}: expected schema {SCHEMA}, found {found}", _WRITES)
    where = f"--measured {path}"
    try:
        kind = content["about"]["kind"]
        values = {str(name): _checked(name, value, where) for name, value in content["constants"].items()}
        checks = [
            Check(str(each["what"]), float(each["predicted"]), float(each["measured"])) for each in content["checks"]
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{where}: incomplete ({type(error).__name__}: {error})", _WRITES) from error
    if kind != card.kind:
        raise InputError(f"{where}: measured on {kind}, but --device {card.name} is {card.kind}", _ON_CPU)
    if not all(each.measured > 0 for each in checks):
        raise InputError(f"{where}: a check that took no time", _WRITES)
    return values, checks


_ON_CPU = "Name a device of that kind, such as --device cpu:16GB."
_WRITES = "python benchmarks/cluster_simulation.py --output FILE writes one."


def _checked(name: str, value: object, where: str) -> float:
    if name not in NAMES:
        raise InputError(f"{where}: unknown constant {name!r}{nearest(name, NAMES)}", f"Known: {', '.join(NAMES)}.")
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and name not in _MAY_BE_ZERO) or (name in _SHARES and value > 1):  # type: ignore[operator]
        expected = "a share from 0 to 1" if name in _SHARES else "a number above 0"
        raise InputError(f"{where}: {name} = {value!r}: expected {expected}")
    return float(value)  # type: ignore[arg-type]
