"""What can go wrong with the sandbox itself. What goes wrong with a program is in its verdict, never an
exception."""

from __future__ import annotations


class SandboxError(Exception):
    """The sandbox can't do what was asked."""


class LevelUnavailableError(SandboxError):
    """This machine can't give the confinement that was required. The message says which layer is missing,
    why, and what to enable."""


class InvalidTestError(SandboxError, ValueError):
    """A test that can't be judged: values that aren't plain data, a language that its kind doesn't know."""


class SandboxClosedError(SandboxError):
    """The sandbox was closed before the program was judged."""


class SlotError(SandboxError):
    """A slot died, hung or could not start a program. Retried once, then reported in the verdict."""
