"""What engines are measured by: the prompts and the lengths of a training generation, from a run or from the tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.models.folder import load_tokenizer, longest_context
from ascent.tracking.packed_files import counting
from ascent.tracking.rollouts import read_rollouts
from ascent.tracking.run_directory import open_existing, write_json
from ascent.training.policy_tasks import run_tasks
from ascent.tuning.probe import Group
from ascent.types import Sampling

SCHEMA = "ascent.workload/1"


@dataclass(frozen=True, slots=True)
class Workload:
    """The groups of one generation, and in words where they are from."""

    groups: tuple[Group, ...]
    source: str

    @property
    def sequences(self) -> int:
        """Completions."""
        return sum(len(group.lengths) for group in self.groups)

    @property
    def tokens(self) -> int:
        """Of completions."""
        return sum(sum(group.lengths) for group in self.groups)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its longest completion."""
        return max(len(group.prompt_ids) + max(group.lengths) for group in self.groups)

    @property
    def longest_prompt(self) -> int:
        """In tokens."""
        return max(len(group.prompt_ids) for group in self.groups)

    def shortened(self, share: float) -> Workload:
        """The same prompts and as many completions, each with so much of its length: a cheaper probe of as many at
        once."""
        groups = (
            replace(group, lengths=tuple(max(1, round(length * share)) for length in group.lengths))
            for group in self.groups
        )
        return replace(self, groups=tuple(groups))

    def regrouped(self, size: int) -> Workload | None:
        """The same completions in groups of another size, so of fewer or more prompts; None where that doesn't come out
        even, or there are too few prompts."""
        lengths = [length for group in self.groups for length in group.lengths]
        count, rest = divmod(len(lengths), size)
        if rest or not 1 <= count <= len(self.groups):
            return None
        groups = (
            Group(self.groups[place].prompt_ids, tuple(lengths[place * size : (place + 1) * size]))
            for place in range(count)
        )
        return replace(self, groups=tuple(groups))

    def told(self) -> str:
        """In a sentence."""
        lengths = sorted(length for group in self.groups for length in group.lengths)
        return (
            f"{self.sequences} completions of {len(self.groups)} prompts, {lengths[0]} to {lengths[-1]} tokens "
            f"(median {lengths[len(lengths) // 2]}), prompts of up to {self.longest_prompt}: {self.source}"
        )

    def write(self, path: Path) -> None:
        """As JSON, by rename."""
        groups = [[list(group.prompt_ids), list(group.lengths)] for group in self.groups]
        write_json(path, {"schema": SCHEMA, "source": self.source, "groups": groups})


def read(path: Path) -> Workload:
    """A workload that was written. Raises InputError for a file that holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r}, expected {SCHEMA!r}")
        groups = tuple(Group(tuple(map(int, ids)), tuple(map(int, lengths))) for ids, lengths in content["groups"])
        if not groups or not all(group.prompt_ids and group.lengths and min(group.lengths) > 0 for group in groups):
            raise ValueError("expected groups of a prompt and lengths of at least 1")
        return Workload(groups, str(content["source"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no workload can be read from it: {error}") from error


def of_run(folder: Path, groups: int) -> Workload:
    """The newest `groups` groups that a run sampled, with the lengths that they had. Raises InputError for a folder
    that isn't a run, or in which none is recorded."""
    run = open_existing(folder)
    found: dict[str, list[dict[str, Any]]] = {}
    for file in reversed(counting(run.rollouts.glob("*.parquet"))):
        rows = [row for row in read_rollouts(file) if row["prompt_ids"] and row["completion_ids"]]
        for row in sorted(rows, key=lambda row: -row["generation"]):
            key = f"{row['generation']} {row['rank']} {row['group_id']}"
            if key in found or len(found) < groups:
                found.setdefault(key, []).append(row)
        if len(found) >= groups:
            break
    if not found:
        raise InputError(
            f"{folder}: no completion is recorded in it, so there are no lengths to take",
            "Give a run that has made a step, or leave --run out: then the policy samples the tasks first.",
        )
    generations = sorted({int(key.split()[0]) for key in found})
    return Workload(
        tuple(
            Group(tuple(rows[0]["prompt_ids"]), tuple(len(row["completion_ids"]) for row in rows))
            for rows in found.values()
        ),
        f"as {folder.name} sampled them in generation {generations[0]}"
        + (f" to {generations[-1]}" if len(generations) > 1 else ""),
    )


def of_tasks(config: RunConfig, folder: Path, groups: int, size: int, completion: int) -> tuple[Workload, list[str]]:
    """Prompts of the run's training tasks, each with `size` completions of at most `completion` tokens: what a first
    probe, in which completions end as they do, makes a workload of (`with_lengths`). And notes about tasks left out.

    Raises InputError for tasks that can't be loaded or are too long for the model.
    """
    tokenizer = load_tokenizer(folder, trust_remote_code=config.model.trust_remote_code)
    context = config.rollout.max_model_len or longest_context(folder, trust_remote_code=config.model.trust_remote_code)
    tasks = run_tasks(config.tasks, tokenizer, context=context, completion=completion, shown=0)
    chosen = random.Random(int(config.trainer.get("seed") or 42)).sample(tasks.train, min(groups, len(tasks.train)))
    template: Mapping[str, Any] = config.trainer.get("chat_template_kwargs") or {}
    prompts = [_prompt_ids(task.prompt, tokenizer, template) for task in chosen]
    notes = list(tasks.notes)
    if len(chosen) < groups:
        notes.append(f"{len(chosen)} training tasks for {groups} groups: some stand twice")
    lengths = (completion,) * size
    made = tuple(Group(prompts[place % len(prompts)], lengths) for place in range(groups))
    return Workload(made, f"prompts of {config.tasks.train}, lengths as the policy samples them"), notes


def with_lengths(workload: Workload, lengths: Sequence[Sequence[int]]) -> Workload:
    """The workload with the lengths that its completions were found to have."""
    groups = (
        replace(group, lengths=tuple(max(1, length) for length in found))
        for group, found in zip(workload.groups, lengths, strict=True)
    )
    return replace(workload, groups=tuple(groups))


def sampling_of(trainer: Mapping[str, Any], stop_token_ids: tuple[int, ...]) -> Sampling:
    """How a run with these settings under `trainer:` samples."""
    given = {**trainer, **(trainer.get("generation_kwargs") or {})}
    return Sampling(
        None,
        temperature=float(given.get("temperature", 1.0)),
        top_p=float(given.get("top_p", 1.0)),
        top_k=int(given.get("top_k") or 0),
        min_p=float(given.get("min_p") or 0.0),
        repetition_penalty=float(given.get("repetition_penalty", 1.0)),
        stop_token_ids=stop_token_ids,
    )


def ends(folder: Path, *, trust_remote_code: bool = False) -> tuple[int, ...]:
    """The tokens that end a completion of the model: its tokenizer's, and those that its generation config names."""
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    file = folder / "generation_config.json"
    named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    more = [named] if isinstance(named, int) else list(named or ())
    return tuple(dict.fromkeys([int(tokenizer.eos_token_id), *more]))


def _prompt_ids(prompt: Any, tokenizer: Any, template: Mapping[str, Any]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(tokenizer(prompt)["input_ids"])
    ids = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=True, **template)
    return tuple(ids["input_ids"])
