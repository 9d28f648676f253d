"""A completion as TRL hands it to reward functions: text, or the message that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trl.chat_template_utils import parse_response
from trl.data_utils import is_conversational

from ascent.types import Completion

# the row of the prompt, the completion, its text without special tokens
AnswerOf = Callable[[Mapping[str, Any], Completion, str], Any]


def answers_for(tokenizer: Any) -> AnswerOf:
    """What TRL makes of completions without tools. `tokenizer` is this function's own: it is used in any thread."""
    parses = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))

    def answer(row: Mapping[str, Any], completion: Completion, text: str) -> Any:
        if not is_conversational({"prompt": row["prompt"]}):
            return text
        if parses:
            return [parse_response(tokenizer, token_ids(completion), prefix=list(completion.prompt_ids), tools=None)]
        return [{"role": "assistant", "content": text}]

    return answer


def token_ids(completion: Completion) -> list[int]:
    """A completion's tokens as plain numbers."""
    ids: list[int] = completion.token_ids.tolist()
    return ids
