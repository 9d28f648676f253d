"""Random generations as TRL's `_generate_and_score_completions` returns them: the same from the same seed.

B rows (completions), P and C columns of prompt and completion. Made on the host in float32; `to` moves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Generation = dict[str, Tensor]
# (input ids, attention mask), both (B, P + C) -> log-probabilities of the last C tokens, (B, C)
LogProbs = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True, slots=True)
class Ragged:
    """What a random generation is like.

    Groups have a prompt of their own, except that the second shares the first's. A share of groups is `silent` (all
    advantages zero), a share of rows `equal` to another one of their group. `old`, `reference` and `sampler` say
    whether log-probabilities of an older policy, the reference and the sampler come with it; `ratio` says of what shape
    the sampler's importance ratios are. `masked`: truncated completions are masked; `tools`: some tokens are a tool's.
    """

    groups: int = 6
    size: int = 4
    longest_prompt: int = 14
    longest_completion: int = 12
    silent: float = 0.35
    equal: float = 0.25
    old: bool = True
    reference: bool = False
    sampler: bool = False
    ratio: str = ""  # "token": (B, C); "sequence": (B, 1)
    masked: bool = False
    tools: bool = False

    @property
    def rows(self) -> int:
        """B."""
        return self.groups * self.size


def make(what: Ragged, seed: int, logps: LogProbs, vocabulary: int = 250) -> Generation:
    """A generation. `logps` are the policy's own, around which those of other policies lie."""
    draw = torch.Generator().manual_seed(seed)
    prompts, completions = _sequences(what, draw, vocabulary)
    prompt_ids, prompt_mask = _pad(prompts, left=True)
    completion_ids, completion_mask = _pad(completions, left=False)
    if what.masked:
        whole = torch.tensor([ids[-1] == 1 for ids in completions])
        completion_mask = completion_mask * whole[:, None]
    made: Generation = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": _advantages(what, draw),
    }
    if what.tools:
        made["tool_mask"] = (torch.rand(completion_ids.shape, generator=draw) > 0.3).long()
    loss_mask = completion_mask * made.get("tool_mask", torch.ones_like(completion_mask))
    made["num_items_in_batch"] = loss_mask.sum()
    own = logps(
        torch.cat([prompt_ids, completion_ids], 1),
        torch.cat([prompt_mask, completion_mask], 1),
        completion_ids.shape[1],
    )

    def another(spread: float) -> Tensor:
        """Another policy's: a whole sequence is more or less likely, and each token of it."""
        per_row, per_token = (torch.randn(shape, generator=draw) for shape in ((what.rows, 1), tuple(own.shape)))
        return own + spread * (per_row + per_token)

    if what.old:
        made["old_per_token_logps"] = another(0.2)
    if what.reference:
        made["ref_per_token_logps"] = another(0.3)
    if what.sampler or what.ratio:
        made["sampling_per_token_logps"] = another(0.3)
    if what.ratio:
        made["importance_sampling_ratio"] = _ratio(what, draw, own.shape[1])
    return made


def to(made: Generation, device: Any) -> Generation:
    """The generation on a device."""
    return {name: tensor.to(device) for name, tensor in made.items()}


def rows_of(made: Generation, rows: slice) -> Generation:
    """Some rows, with all else as it is: what one process of several has of a generation."""
    return {name: tensor[rows] if tensor.ndim else tensor for name, tensor in made.items()}


def together(generations: list[Generation]) -> Generation:
    """All rows of several generations, as if they were one."""

    def padded(name: str, tensor: Tensor) -> Tensor:
        missing = max(each[name].shape[-1] for each in generations) - tensor.shape[-1]
        if tensor.ndim < 2 or not missing:
            return tensor
        return torch.nn.functional.pad(tensor, (missing, 0) if name.startswith("prompt") else (0, missing))

    joined = {
        name: torch.cat([padded(name, each[name]) for each in generations])
        for name, tensor in generations[0].items()
        if tensor.ndim
    }
    return {**joined, "num_items_in_batch": torch.stack([each["num_items_in_batch"] for each in generations]).sum()}


def with_signal(generation: Generation) -> Generation:
    """The rows of a generation whose advantage isn't zero, and that have a token in the loss."""
    kept = (generation["advantages"] != 0) & generation["completion_mask"].any(1)
    return {name: tensor[kept] if tensor.ndim else tensor for name, tensor in generation.items()}


def _sequences(what: Ragged, draw: torch.Generator, vocabulary: int) -> tuple[list[list[int]], list[list[int]]]:
    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    def tokens(count: int) -> list[int]:
        return torch.randint(2, vocabulary, (count,), generator=draw).tolist()

    own_prompts = [tokens(number(1, what.longest_prompt)) for _ in range(what.groups)]
    own_prompts[1] = own_prompts[0]
    prompts = [prompt for prompt in own_prompts for _ in range(what.size)]
    completions: list[list[int]] = []
    for row in range(what.rows):
        place = row % what.size
        if place and float(torch.rand(1, generator=draw)) < what.equal:
            completions.append(completions[row - 1 - number(0, place - 1)])
            continue
        length = number(1, what.longest_completion)
        truncated = length == what.longest_completion or number(0, 4) == 0
        completions.append(tokens(length) if truncated else [*tokens(length - 1), 1])
    return prompts, completions


def _pad(sequences: list[list[int]], *, left: bool) -> tuple[Tensor, Tensor]:
    width = max(map(len, sequences))
    ids, mask = (
        torch.zeros(len(sequences), width, dtype=torch.long),
        torch.zeros(len(sequences), width, dtype=torch.long),
    )
    for row, sequence in enumerate(sequences):
        columns = slice(width - len(sequence), width) if left else slice(len(sequence))
        ids[row, columns], mask[row, columns] = torch.tensor(sequence), 1
    return ids, mask


def _advantages(what: Ragged, draw: torch.Generator) -> Tensor:
    scores = torch.randn(what.groups, what.size, generator=draw)
    scores[:, 0] = scores.mean(1)  # one of them is as good as its group
    advantages = (scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-4)
    advantages[:, 0] = 0.0
    silent = torch.randperm(what.groups, generator=draw)[: round(what.silent * what.groups)]
    advantages[silent] = 0.0
    return advantages.flatten()


def _ratio(what: Ragged, draw: torch.Generator, columns: int) -> Tensor:
    shape = (what.rows, columns if what.ratio == "token" else 1)
    ratio = torch.exp(0.4 * torch.randn(shape, generator=draw)).clamp(max=1.5)
    return ratio.masked_fill(torch.rand(shape, generator=draw) < 0.1, 0.0)  # as the modes that mask leave it
