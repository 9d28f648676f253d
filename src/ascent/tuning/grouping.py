"""Group size and tokens of a training pass, chosen together at equal samples per update: an estimate.

More completions of a prompt mean fewer prompts to compute, when sampling and when training. Sampling is measured, with
the same completions in other groups. The update isn't: the passes that the trainer would make are counted (the same
parts as `training/batches/plan.py` makes), and each costs what the cost model of the memory's room says of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ascent.memory.cost import CostModel
from ascent.training.batches.plan import sub_batches
from ascent.training.batches.rows import Length
from ascent.tuning.workload import Workload

_FACTORS = (0.5, 1, 2, 4)
_LEAST = 2  # completions of a prompt that can be compared


@dataclass(frozen=True, slots=True)
class Grouping:
    """`group` completions of each of `prompts` prompts, trained on in passes of at most `tokens` tokens. `sampling` is
    in seconds, measured; `update` is the estimated cost of forward and backward passes over the configured one's.
    `configured`: as the run has it."""

    group: int
    prompts: int
    tokens: int
    passes: int
    sampling: float
    update: float
    configured: bool = False

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def sizes(workload: Workload, group: int) -> list[int]:
    """Other sizes of a group that the workload can be dealt into."""
    wanted = sorted({int(group * factor) for factor in _FACTORS} - {group})
    return [size for size in wanted if size >= _LEAST and workload.regrouped(size) is not None]


def estimates(
    measured: Sequence[tuple[Workload, float]],
    tokens: int,
    cost: CostModel,
    fits: Callable[[int, int], bool],
) -> list[Grouping]:
    """Of each measured workload, of which the first is the configured one, with its seconds of sampling: passes of
    `tokens` tokens (as configured), of half, of twice and of four times as many, where `fits(group, tokens)`."""
    first = measured[0][0]
    own, _ = update_cost(first, tokens, cost)
    found = []
    for workload, seconds in measured:
        group = len(workload.groups[0].lengths)
        known: set[int] = set()
        for budget in sorted({int(tokens * factor) for factor in _FACTORS}, key=lambda each: (each != tokens, each)):
            if budget < workload.longest or not fits(group, budget):
                continue
            price, passes = update_cost(workload, budget, cost)
            if passes in known:  # the same passes: nothing is gained by more room
                continue
            known.add(passes)
            configured = workload is first and budget == tokens
            found.append(
                Grouping(group, len(workload.groups), budget, passes, seconds, price / own, configured=configured)
            )
    return found


def update_cost(workload: Workload, tokens: int, cost: CostModel) -> tuple[float, int]:
    """Operations of a layer for an update with shared prompts in passes of at most so many tokens; how many passes.

    A pass has a row for each of its prompts, followed by that prompt's completions, all as wide as the widest.
    """
    lengths: list[Length] = []
    prompts: list[int] = []
    for prompt, group in enumerate(workload.groups):
        for completion in group.lengths:
            lengths.append(Length(prompt, len(lengths), len(group.prompt_ids), completion))
            prompts.append(prompt)
    parts = sub_batches(lengths, range(len(lengths)), tokens, shared=True)
    total = 0.0
    for part in parts:
        widths: dict[int, int] = {}
        for place in part:
            prompt = prompts[place]
            widths[prompt] = widths.get(prompt, lengths[place].prompt_tokens) + lengths[place].completion_tokens
        total += cost.start + cost.masked(len(widths), max(widths.values()))
    return total, len(parts)


def grouping_table(groupings: Sequence[Grouping]) -> list[str]:
    """For people; the configured one is marked."""
    lines = [
        "group size and tokens of a pass at equal samples per update (sampling measured; update an estimate from the",
        "tokens of its passes, not measured):",
        "  num_generations  prompts  max_tokens_per_batch  passes  sampling s  update",
    ]
    for each in groupings:
        lines.append(
            f"  {each.group:>15}  {each.prompts:>7}  {each.tokens:>20}  {each.passes:>6}  {each.sampling:>10.2f}  "
            f"{each.update:>5.2f}x{'  as configured' if each.configured else ''}"
        )
    return lines
