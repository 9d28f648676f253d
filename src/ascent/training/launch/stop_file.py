"""How a launcher and its training processes speak of stopping: through two files in a folder of the launcher's."""

from __future__ import annotations

import os
from pathlib import Path

STOP_FILE_VARIABLE = "ASCENT_STOP_FILE"


def stop_file() -> Path | None:
    """The file whose appearance asks this process to stop; None without a launcher."""
    name = os.environ.get(STOP_FILE_VARIABLE)
    return Path(name) if name else None


def stopped_mark(file: Path) -> Path:
    """The file that says that the run was stopped before its end."""
    return file.with_name("stopped")
