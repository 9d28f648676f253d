"""Prompts and completions as people read them."""

from __future__ import annotations

from typing import Any


def as_text(content: Any) -> str:
    """A prompt or completion as text: chat messages are joined with their roles."""
    if isinstance(content, str):
        return content
    if len(content) == 1 and content[0].get("role") == "assistant":
        return str(content[0].get("content") or "")
    return "\n".join(f"<{message.get('role')}>\n{message.get('content')}" for message in content)
