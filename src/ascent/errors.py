"""The one exception for input that a user can mend."""

from __future__ import annotations


class InputError(Exception):
    """Something that the user gave is wrong: a setting, a file, a model, a machine that can't do what was asked.

    The message says what was wrong, where, and what was expected; `mend` says what to do. The command line prints both
    without a traceback and ends with exit code 2.
    """

    def __init__(self, message: str, mend: str = "") -> None:
        super().__init__(message if not mend else f"{message}\n  {mend}")
        self.message = message
        self.mend = mend
