"""The tasks of a run as the policy reads them: loaded, phrased, split, and those that don't fit left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ascent.config.sections import TasksSection
from ascent.errors import InputError
from ascent.rewards.thoughts import opens_thought
from ascent.tasks.loading import load_split, load_tasks
from ascent.tasks.prompts import with_prompt
from ascent.types import Task


@dataclass(frozen=True, slots=True)
class RunTasks:
    """Training and held-out tasks with their prompts; `longest_prompt` in tokens; `notes` tell what was left out."""

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    longest_prompt: int
    notes: tuple[str, ...]


def run_tasks(section: TasksSection, tokenizer: Any, *, context: int, completion: int, shown: int | None) -> RunTasks:
    """Load the tasks that `section` names.

    Tasks whose prompt leaves no room for `completion` tokens in a `context`, or is longer than `max_prompt_tokens`, are
    left out and told. At most `shown` held-out tasks are kept. Raises InputError when no training task remains.
    """
    notes = []
    if isinstance(section.held_out, str):
        loaded, other = (load_tasks(source, strict=section.strict) for source in (section.train, section.held_out))
        notes += [other.report()] if other.rejected else []
        train, held_out = loaded.tasks, other.tasks
        both = {task.id for task in train} & {task.id for task in held_out}
        if both:
            raise InputError(
                f"{len(both)} tasks stand in both {section.train} and {section.held_out} (first: {min(both)})",
                "Held-out tasks must not be trained on: take them out of one file.",
            )
    else:
        loaded, train, held_out = load_split(section.train, section.held_out, section.seed, strict=section.strict)
    notes += [loaded.report()] if loaded.rejected else []
    chat = section.chat == "always" or (section.chat == "auto" and tokenizer.chat_template is not None)
    if chat and tokenizer.chat_template is None:
        raise InputError("tasks.chat=always, but the model's tokenizer has no chat template", "Set tasks.chat=never.")
    room = min(section.max_prompt_tokens or context, context - completion)
    if room < 1:
        raise InputError(
            f"max_completion_length={completion} leaves no room for a prompt in the context of {context} tokens",
            "Lower trainer.max_completion_length.",
        )
    lengths: dict[str, int] = {}
    kept_train = _fitting(train, tokenizer, chat, room, lengths, notes, "training " if section.held_out else "")
    kept_held_out = _fitting(held_out, tokenizer, chat, room, lengths, notes, "held-out ")
    kept_train = kept_train[: section.limit]
    kept_held_out = kept_held_out[:shown]
    if not kept_train:
        raise InputError(
            f"{section.train}: no task is left: every prompt is longer than {room} tokens",
            f"Completions of up to {completion} tokens take the rest of the context of {context}: let them be shorter.",
        )
    longest = max(lengths[task.id] for task in (*kept_train, *kept_held_out))
    return RunTasks(tuple(kept_train), tuple(kept_held_out), longest, tuple(notes))


def prompts_open_thought(tasks: Sequence[Task], tokenizer: Any, template_arguments: Any) -> bool:
    """Whether the chat template ends the tasks' prompts with `<think>` or the like, so that completions begin within a
    thought. `template_arguments` are TRL's `chat_template_kwargs`: a dictionary or None."""
    prompt = next((task.prompt for task in tasks if not isinstance(task.prompt, str)), None)
    if prompt is None:
        return False
    text = tokenizer.apply_chat_template(
        list(prompt), add_generation_prompt=True, tokenize=False, **(template_arguments or {})
    )
    return opens_thought(text)


def to_dataset(tasks: Sequence[Task]) -> Any:
    """A `datasets.Dataset` for TRL: columns `prompt` (text or messages) and `task_id`."""
    from datasets import Dataset

    rows = [
        {"prompt": task.prompt if isinstance(task.prompt, str) else list(task.prompt), "task_id": task.id}
        for task in tasks
    ]
    return Dataset.from_list(rows)


def _fitting(
    tasks: Sequence[Task], tokenizer: Any, chat: bool, room: int, lengths: dict[str, int], notes: list[str], kind: str
) -> list[Task]:
    kept = []
    too_long: list[str] = []
    for task in (with_prompt(task, chat=chat) for task in tasks):
        lengths[task.id] = _length(task, tokenizer)
        if lengths[task.id] <= room:
            kept.append(task)
        else:
            too_long.append(task.id)
    if too_long:
        notes.append(f"{len(too_long)} {kind}tasks left out: prompt over {room} tokens (first: {too_long[0]})")
    return kept


def _length(task: Task, tokenizer: Any) -> int:
    if isinstance(task.prompt, str):
        return len(tokenizer(task.prompt)["input_ids"])
    return len(
        tokenizer.apply_chat_template(list(task.prompt), add_generation_prompt=True, return_dict=True)["input_ids"]
    )
