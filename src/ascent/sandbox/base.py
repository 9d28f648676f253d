"""The sandbox's own directory: scratch directories and compiled programs. One left behind by a killed judge
is removed by the next one that starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "ascent-sandbox-"


def make_base() -> tuple[str, int]:
    """Its path, and the descriptor of a lock that says it is in use for as long as this process lives."""
    _remove_stale(Path(tempfile.gettempdir()))
    path = tempfile.mkdtemp(prefix=_PREFIX)
    os.chmod(path, 0o711)  # programs pass through it on the way to their scratch, and can't list it
    lock = os.open(os.path.join(path, "lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return path, lock


def _remove_stale(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, of another user, or removed by somebody else meanwhile
            lock = os.open(path / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(lock)
