"""Which of the ways to lay out a batch is taken, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ascent.errors import InputError
from ascent.memory.cost import CostModel
from ascent.training.batches.passes.equal_rows import PromptGroup
from ascent.training.batches.passes.layout import Layout, Limits, cached, plain, shared_rows
from ascent.training.batches.passes.support import Support

SharedPrompt = Literal["auto", "rows", "cache", "off"]
SETTINGS: tuple[SharedPrompt, ...] = ("auto", "rows", "cache", "off")
_WORTH = 0.95  # another way must cost less than that share of the simpler one


@dataclass(frozen=True, slots=True)
class Choice:
    """The layout taken, and in words what else there was."""

    layout: Layout
    why: str


def check_wanted(setting: SharedPrompt, support: Support) -> None:
    """Raises InputError where the setting names a way that would not be exact for this model."""
    reason = {"rows": support.sharing, "cache": support.caching}.get(setting)
    if reason is not None:
        raise InputError(
            f"shared_prompt={setting} can't be had: {reason}",
            'shared_prompt="auto" takes the best way that is exact for this model, "off" none',
        )


def choose(
    setting: SharedPrompt, groups: Sequence[PromptGroup], cost: CostModel, limits: Limits, support: Support
) -> Choice:
    """The cheapest layout that the setting and the model allow."""
    if setting in ("rows", "cache"):
        return Choice((shared_rows if setting == "rows" else cached)(groups, cost, limits), "as set")
    simple = plain(groups, cost, limits)
    if setting == "off":
        return Choice(simple, "as set")
    if support.sharing is not None:
        return Choice(simple, support.sharing)
    if all(len(group.members) == 1 for group in groups):
        return Choice(simple, "no prompt has two different completions")
    layouts = [simple, shared_rows(groups, cost, limits)]
    if support.caching is None:
        layouts.append(cached(groups, cost, limits))
    best = simple
    for layout in layouts[1:]:
        if layout.cost < _WORTH * best.cost:
            best = layout
    shares = [f"{layout.way} {layout.cost / simple.cost:.2f}" for layout in layouts[1:]]
    reason = f"estimated cost against a row for each completion: {', '.join(shares)}"
    return Choice(best, reason if support.caching is None else f"{reason}; cache: {support.caching}")
