"""Cards as data (`data/cards.toml`): their memory, how much of it a program gets, and what they compute in."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

from ascent.errors import InputError
from ascent.tables import nearest

GIB = 2**30
_TELLING = 4  # characters of a name that may stand within a longer one
Kind = Literal["npu", "cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class Card:
    """One device. Sizes are bytes: `usable` is what its allocator sees as total, `reserve` what of it no allocator
    gets (context, kernels, fragmentation), `collective` the buffers of one group of ranks. `bandwidth` is in bytes a
    second; `tflops` its peak in 16-bit numbers, 10^12 operations a second, 0 where it isn't known. `why` says why it
    can't train, where it can't (`trains`)."""

    name: str
    kind: Kind
    capacity: int
    usable: int
    reserve: int
    collective: int
    bandwidth: float
    bf16: bool
    trains: bool = True
    why: str = ""
    tflops: float = 0.0


@cache
def cards() -> dict[str, Card]:
    """All cards by name."""
    text = resources.files("ascent.memory").joinpath("data/cards.toml").read_text(encoding="utf-8")
    return {name: _card(name, values) for name, values in tomllib.loads(text).items()}


@cache
def _names() -> dict[str, str]:
    """Every way in which a card is named, in small letters without signs -> its name."""
    text = resources.files("ascent.memory").joinpath("data/cards.toml").read_text(encoding="utf-8")
    return {_plain(alias): name for name, values in tomllib.loads(text).items() for alias in (name, *values["aliases"])}


def card(name: str) -> Card:
    """The card of that name, as drivers or people write it (`910B3`, `NVIDIA H100 80GB HBM3`); or one by hand: `64GB`,
    `npu:64GB`, `cpu:16GB`, with its memory in GiB.

    Raises InputError for one that isn't known.
    """
    by_hand = re.fullmatch(r"(?:(npu|cuda|cpu):)?(\d+(?:\.\d+)?)\s*G(?:i?B)?", name.strip(), re.IGNORECASE)
    if by_hand:
        return of_size(float(by_hand[2]), (by_hand[1] or "npu").lower())
    plain, names = _plain(name), _names()
    if plain in names:
        return cards()[names[plain]]
    longest_first = sorted((known for known in names if len(known) >= _TELLING), key=len, reverse=True)
    # a further digit makes another card: an H2000 is no H200
    inside = [known for known in longest_first if re.search(rf"(?<!\d){re.escape(known)}(?!\d)", plain)]
    if inside:
        return cards()[names[inside[0]]]
    raise InputError(
        f"--device {name}: no card of that name is known{nearest(name, list(names))}",
        f"Known: {', '.join(cards())}. By hand: --device npu:64GB (memory of one device in GiB).",
    )


def of_size(gib: float, kind: str = "npu") -> Card:
    """A card that isn't in the list, by its memory in GiB. Raises InputError for a size that no device has."""
    if not 0.001 <= gib <= 4096:
        raise InputError(f"--device {kind}:{gib:g}GB: expected the memory of one device in GiB, from 0.001 to 4096")
    size = int(gib * GIB)
    if kind == "cpu":
        return Card(f"{gib:g} GiB of host memory", "cpu", size, size, 0, 0, 2e10, bf16=False)
    share = 0.953 if kind == "npu" else 0.99  # as those of the list
    usable = int(size * share)
    reserve = min(int(1.5 * GIB), usable // 10) if kind == "cuda" else min(4 * GIB, usable // 10)
    return Card(f"{kind} of {gib:g} GiB", kind, size, usable, reserve, int(0.4 * GIB), 1e12, bf16=True)  # type: ignore[arg-type]


def exactly(size: int, kind: Kind = "npu") -> Card:
    """A device that counts every byte and keeps none for itself, such as a software one."""
    return replace(
        of_size(max(size, 2**21) / GIB, "cpu"), name=f"{size} bytes", kind=kind, capacity=size, usable=size, bf16=True
    )


def _card(name: str, values: dict[str, object]) -> Card:
    def size(key: str) -> int:
        return int(float(str(values[key])) * GIB)

    return Card(
        name,
        values["kind"],  # type: ignore[arg-type]
        size("capacity"),
        size("usable"),
        size("reserve"),
        size("collective"),
        float(str(values["bandwidth"])) * 1e9,
        bool(values["bf16"]),
        bool(values.get("trains", True)),
        str(values.get("why", "")),
        float(str(values.get("tflops", 0))),
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
