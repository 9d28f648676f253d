"""What the policy reads: a task as chat messages, or as plain text for a model without a chat template.

Two kinds of task read differently:

- **completion**: the prompt is the head of a program and ends with the task's `prefix` (HumanEval, the
  built-in tasks). Plain text is that head as it is, without a newline at its end: tokenizers merge a newline
  with the spaces that follow, so the completion must bring both. In chat the model is asked for the whole
  program, and `prefix` shrinks to what stands above the function (imports, helpers).
- **statement**: the prompt says what to write (MBPP, APPS). Plain text ends with an opened fence, which a
  base model goes on to fill; `ends_in_fence` tells the reader of completions that the first fence closes the
  program.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ascent.sandbox.types import AssertTest, StdioTest, Test
from ascent.types import Task

_FENCE = {"python": "```python", "c": "```c", "cpp": "```cpp", "rust": "```rust"}
_NAMES = {"python": "Python", "c": "C", "cpp": "C++", "rust": "Rust"}
LONGEST_SHOWN_TEST = 1000  # characters; longer visible tests would fill the prompt


def with_prompt(task: Task, *, chat: bool) -> Task:
    """The task with the `prompt` and `prefix` that the policy gets.

    With `chat`, `prompt` is a tuple of messages for the tokenizer's chat template, otherwise text that never
    ends in white space. Messages given by the task itself are kept as they are (without `chat`: their
    contents, joined).
    """
    if not isinstance(task.prompt, str):
        if chat:
            return task
        return replace(task, prompt="\n\n".join(message["content"].strip() for message in task.prompt))
    if is_completion_task(task):
        if chat:
            return _chat_completion(task)
        return replace(task, prompt=task.prompt.rstrip(), prefix=task.prefix.rstrip())
    statement = f"{task.prompt.strip()}{_entry_point(task)}{_shown_tests(task)}"
    if chat:
        return replace(task, prompt=_message(f"{statement}\n\n{_answer_with(task)}"))
    opened = f"Solution in {_NAMES[task.language]}:\n\n{_FENCE[task.language]}"
    return replace(task, prompt=f"{statement}\n\n{opened}")


def is_completion_task(task: Task) -> bool:
    """Whether the task's prompt is the head of the program that the completion goes on with."""
    return isinstance(task.prompt, str) and bool(task.prefix.strip()) and task.prompt.endswith(task.prefix)


def ends_in_fence(prompt: str) -> bool:
    """Whether a plain-text prompt leaves a fence open, so that the completion is code up to the next
    fence."""
    return prompt.rsplit("\n", 1)[-1] in _FENCE.values()


def shown_test(test: Test) -> str:
    """A test in the form in which a prompt shows it."""
    if isinstance(test, AssertTest):
        return f"{test.setup}\n{test.code}" if test.setup else test.code
    if isinstance(test, StdioTest):
        return f"Input:\n{test.stdin.rstrip()}\nOutput:\n{test.stdout.rstrip()}"
    arguments = [*map(repr, test.args), *(f"{name}={value!r}" for name, value in test.kwargs.items())]
    function = test.function.replace(".", "().", 1)  # a method of a new instance
    return f"assert {function}({', '.join(arguments)}) == {test.expected!r}"


def _chat_completion(task: Task) -> Task:
    head = task.prompt
    assert isinstance(head, str)
    asked = f"Complete this {_NAMES[task.language]} program.\n\n{_FENCE[task.language]}\n{head.rstrip()}\n```"
    return replace(
        task,
        prompt=_message(f"{asked}{_shown_tests(task)}\n\n{_answer_with(task)}"),
        prefix=_above_last_function(task.prefix, task.entry_point),
    )


def _above_last_function(prefix: str, entry_point: str | None) -> str:
    name = re.escape(entry_point) if entry_point else r"\w+"
    heads = list(re.finditer(rf"^(?:async\s+)?def\s+{name}\b", prefix, re.MULTILINE))
    return prefix[: heads[-1].start()] if heads else prefix


def _message(content: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": content},)


def _answer_with(task: Task) -> str:
    return f"Answer with the whole {_NAMES[task.language]} program in one {_FENCE[task.language]} block."


def _entry_point(task: Task) -> str:
    named = task.entry_point is None or re.search(rf"\b{re.escape(task.entry_point)}\b", str(task.prompt))
    return "" if named else f"\n\nThe function is called `{task.entry_point}`."


def _shown_tests(task: Task) -> str:
    shown = [text for text in map(shown_test, task.visible_tests) if len(text) <= LONGEST_SHOWN_TEST]
    if not shown:
        return ""
    if any(isinstance(test, StdioTest) for test in task.visible_tests):
        return "\n\nExample:\n\n```\n" + "\n\n".join(shown) + "\n```"
    it_passes = "this test" if len(shown) == 1 else "these tests"
    return f"\n\nIt must pass {it_passes}:\n\n```python\n" + "\n".join(_once_set_up(task, shown)) + "\n```"


def _once_set_up(task: Task, shown: list[str]) -> list[str]:
    """The shown tests with a setup that they share written once, above them."""
    setups = {test.setup for test in task.visible_tests if isinstance(test, AssertTest)}
    setup = setups.pop() if len(setups) == 1 else ""
    if not setup:
        return shown
    return [setup, *(text.removeprefix(f"{setup}\n") for text in shown)]
