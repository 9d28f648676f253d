"""Landlock: which files a process may open, and no TCP and no signals to the outside where the kernel can.

Source: Documentation/userspace-api/landlock.rst. The three system calls have the same numbers on all
architectures.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from ascent.sandbox.inside.syscalls import syscall

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _REFER = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 13
_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

READ = _READ_FILE | _READ_DIR
READ_EXECUTE = READ | _EXECUTE
READ_WRITE_FILE = _READ_FILE | _WRITE_FILE
SCRATCH = READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER


def abi() -> int:
    """The kernel's Landlock version; 0 when there is none."""
    try:
        return syscall(_CREATE, None, 0, 1)
    except OSError:
        return 0


def _handled(version: int) -> int:
    """Every file access that this version can deny."""
    return (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1


def ruleset(grants: list[tuple[str, int]]) -> int:
    """A ruleset's file descriptor that allows `grants` (path, accesses) and nothing else. Paths that don't
    exist are passed over. Raises OSError."""
    version = abi()
    handled = _handled(version)
    attributes = struct.pack("=Q", handled)
    if version >= 4:
        attributes += struct.pack("=Q", 3)  # TCP bind and connect
    if version >= 6:
        attributes += struct.pack("=Q", 3)  # abstract Unix sockets, signals
    fd = syscall(_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    for path, accesses in grants:
        try:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            is_dir = stat.S_ISDIR(os.fstat(beneath).st_mode)
            allowed = accesses & handled & (-1 if is_dir else _FOR_FILES)
            rule = struct.pack("=Qi", allowed, beneath)
            syscall(_ADD, fd, 1, ctypes.c_char_p(rule), 0)
        finally:
            os.close(beneath)
    os.set_inheritable(fd, False)
    return fd


def restrict(fd: int) -> None:
    """Enter the ruleset for ever. Needs no_new_privs. Raises OSError."""
    syscall(_RESTRICT, fd, 0)
