"""How many tokens the update of a step computes, padding included, under given settings: counted, not measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.bench.training.bound import SMALLEST_ADVANTAGE
from ascent.training.batches import plan
from ascent.training.batches.rows import Length


def trained_tokens(rows: Sequence[Mapping[str, Any]], trainer: Mapping[str, Any]) -> float:
    """Of a mean generation of `rows` (`read_rollouts`), with these fields of GRPOConfig."""
    generations: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["advantage"] is not None:
            generations[row["generation"]].append(row)
    tokens = [_of_generation(each, trainer) for each in generations.values()]
    return sum(tokens) / len(tokens) if tokens else 0.0


def _of_generation(rows: Sequence[Mapping[str, Any]], trainer: Mapping[str, Any]) -> float:
    lengths = _lengths(rows)
    micro_batch = int(trainer.get("per_device_train_batch_size") or 8)
    budget = trainer.get("max_tokens_per_batch", "auto")
    places = list(range(len(rows)))
    if trainer.get("skip_zero_advantage", True) and not trainer.get("beta"):
        places = [place for place in places if abs(rows[place]["advantage"]) > SMALLEST_ADVANTAGE]
    if budget is None:  # TRL's micro-batches are padded to the longest of the generation
        widest = max(length.prompt_tokens for length in lengths)
        return len(places) * (widest + max(length.completion_tokens for length in lengths))
    if budget == "auto":
        budget = micro_batch * max(length.tokens for length in lengths)
    shared = trainer.get("shared_prompt", "auto") != "off"
    parts = plan.sub_batches(lengths, places, int(budget), shared=shared)
    if not shared and trainer.get("reuse_equal_rows", True):
        parts = [_distinct(lengths, part) for part in parts]
    return float(sum(plan.tokens_of(lengths, part, shared=shared) for part in parts))


def _distinct(lengths: Sequence[Length], places: Sequence[int]) -> list[int]:
    return list({(lengths[place].prompt, lengths[place].completion): place for place in places}.values())


def _lengths(rows: Sequence[Mapping[str, Any]]) -> list[Length]:
    prompts: dict[tuple[int, ...], int] = {}
    completions: dict[tuple[int, tuple[int, ...]], int] = {}
    found = []
    for row in rows:
        prompt = prompts.setdefault(tuple(row["prompt_ids"]), len(prompts))
        completion = completions.setdefault((prompt, tuple(row["completion_ids"])), len(completions))
        found.append(Length(prompt, completion, len(row["prompt_ids"]), len(row["completion_ids"])))
    return found
