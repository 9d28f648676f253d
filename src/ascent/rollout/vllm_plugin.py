"""Loaded inside every vLLM process (entry point `vllm.general_plugins`): the standard library, torch and vllm only."""

from __future__ import annotations


def register() -> None:
    """Called by vLLM in its front end, engine core and workers, possibly several times in one process."""
