"""The limit of open files of this process, and what the system refuses for want of something of this process's own.

A connection that can't be opened because of that limit looks much like one that a dead server refuses. Standard library
only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource

_WANTED = 65536  # no more: some programs go through every number below the limit
_OUT_OF_FILES = {errno.EMFILE, errno.ENFILE}
_OUT = _OUT_OF_FILES | {errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}


def raise_limit() -> int:
    """Raise the soft limit as far as the hard one allows (65536 at most); the limit afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _WANTED if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # a sandbox around this process may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def spare() -> int:
    """How many more files may be opened, with a quarter of the limit left for whatever else this process does."""
    limit = raise_limit()
    return max(1, limit - len(os.listdir("/proc/self/fd")) - limit // 4)


def no_file_left(error: OSError) -> str:
    """What to tell when a file can't be opened because too many are; empty when `error` is another one."""
    return _told(error) if error.errno in _OUT_OF_FILES else ""


def own_shortage(error: BaseException) -> str:
    """What to tell about a failure for want of files, memory or room on this side; empty when `error` is another one.

    Looks at the causes of `error` too.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _OUT:
            return _told(seen)
        seen = seen.__cause__ or seen.__context__
    return ""


def _told(error: OSError) -> str:
    if error.errno not in _OUT_OF_FILES:
        return f"this machine is out of something: {error.strerror or error}"
    if error.errno == errno.ENFILE:
        return "too many open files on this machine (fs.file-max)"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too many open files: this process may have {soft} (hard limit {hard}). Raise it before the start: "
        "ulimit -n 65536 (in a container: docker run --ulimit nofile=65536)"
    )
