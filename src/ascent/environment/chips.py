"""Ascend chip names: which generation, whether vLLM-Ascend drives it, whether it computes in bfloat16."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Fitness = Literal["supported", "inference only", "unsupported", "unknown"]


@dataclass(frozen=True)
class Chip:
    """A chip family. ``fitness`` is about GRPO: training and sampling with vLLM-Ascend."""

    family: str
    fitness: Fitness
    bfloat16: bool | None
    build_target: str
    remark: str = ""


_FAMILIES: tuple[tuple[re.Pattern[str], Chip], ...] = (
    (re.compile(r"910B[1-4](C|-\d+)?"), Chip("Atlas A2 (910B)", "supported", True, "A2")),
    (re.compile(r"910B family"), Chip("Atlas A2 (910B)", "supported", True, "A2", "which of them isn't stated")),
    (re.compile(r"910C|910_93\d\d", re.I), Chip("Atlas A3 (910C)", "supported", True, "A3")),
    (re.compile(r"Ascend910"), Chip("Atlas A3 (910C, two dies a card)", "supported", True, "A3")),
    (re.compile(r"950\w*|910_95\d*|A5", re.I), Chip("Ascend 950", "supported", True, "A5")),
    (re.compile(r"A2", re.I), Chip("Atlas A2 (910B)", "supported", True, "A2")),
    (re.compile(r"A3", re.I), Chip("Atlas A3 (910C)", "supported", True, "A3")),
    (
        re.compile(r"310P\d?\w*"),
        Chip(
            "Atlas 300I (310P)",
            "inference only",
            False,
            "310P",
            "vLLM-Ascend samples on it in float16; it isn't a training target",
        ),
    ),
    (
        re.compile(r"910(A|B|Pro[AB]|Premium[AB]?|)"),
        Chip(
            "first-generation Ascend 910",
            "unsupported",
            False,
            "",
            "its kernels are `Ascend-cann-kernels-910`",
        ),
    ),
    (re.compile(r"310B\d?|310|Ascend310"), Chip("Ascend 310", "unsupported", False, "")),
)


def identify(name: str) -> Chip:
    """The family of a chip as npu-smi or a report names it (`910B3`, `Ascend910`, `310P3`)."""
    for pattern, chip in _FAMILIES:
        if pattern.fullmatch(name):
            return chip
    return Chip(name or "unnamed chip", "unknown", None, "")
