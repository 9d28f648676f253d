"""A training goes on when its terminal is gone: what it would print there then goes nowhere."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


def outlive_terminal() -> None:
    """Let standard output and error of this process, where they are a terminal, outlive it.

    Writing to a terminal that was closed, as by a lost connection, fails; an exception in the middle of a step would
    cost the step's checkpoint.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.flush()
            writer = io.BufferedWriter(_Terminal(stream.fileno()))
            lasting = io.TextIOWrapper(writer, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, lasting)


class _Terminal(io.FileIO):
    """A terminal's descriptor, which becomes that of /dev/null when the terminal is found to be gone."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)
