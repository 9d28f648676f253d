"""What a server's log says about its end."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOST_BYTES = 256 * 1024
_TAIL_LINES = 12
# vLLM puts the process and its own place in the source before a line, and prints a traceback both with and without them
_PREFIX = re.compile(r"^(?:\(\S+ pid=\d+\) )?(?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[\S+\] )?")
_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Exit|Interrupt)\b(?::|$)")


def log_text(log: Path, start: int = 0) -> str:
    """The end of a log, from byte `start` on; empty when there is none."""
    try:
        with open(log, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - _MOST_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def last_line(log: Path, start: int = 0) -> str:
    """The last line that a server wrote."""
    lines = log_text(log, start).split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def excerpt(text: str) -> str:
    """The errors that a log holds, the first of which is often the cause of the others, and its last lines."""
    lines = text.rstrip().splitlines()
    plain = [_PREFIX.sub("", line) for line in lines]
    errors = list(dict.fromkeys(line for line in plain if _ERROR.match(line)))
    tail = lines[-_TAIL_LINES:]
    return "\n".join([*(error for error in errors if error not in tail), *(["..."] if errors else []), *tail])
