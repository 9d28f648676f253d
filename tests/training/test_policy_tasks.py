"""What a run learns of its tasks from the tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from ascent.sandbox.types import StdioTest
from ascent.training.policy_tasks import prompts_open_thought
from ascent.types import Task


class Tokenizer:
    """A chat template that opens a thought unless it is told not to, as those of reasoning models do."""

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        enable_thinking: bool = True,
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        return f"{messages[0]['content']}<|assistant|>\n<think>\n" + ("" if enable_thinking else "\n</think>\n\n")


@pytest.mark.parametrize(
    ("prompt", "arguments", "opens"),
    [
        (({"role": "user", "content": "Hi."},), None, True),
        (({"role": "user", "content": "Hi."},), {"enable_thinking": False}, False),
        ("Hi.", None, False),
    ],
)
def test_whether_a_chat_template_opens_a_thought(prompt: Any, arguments: dict[str, Any] | None, opens: bool) -> None:
    assert prompts_open_thought([Task("t", prompt, (StdioTest("", ""),))], Tokenizer(), arguments) is opens
