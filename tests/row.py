"""Rows of other releases that scripts/row.sh installs beside the usual one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lock_of(name: str) -> Path:
    """The versions of a row."""
    return ROOT / "requirements" / f"{name}.txt"


def row_folder(name: str) -> Path | None:
    """Where scripts/row.sh installs a row; None when it has not done so."""
    lock = lock_of(name)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "ascent" / "rows" / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:8]}"
    return folder if (folder / ".complete").is_file() else None


def versions_of(name: str, *packages: str) -> str:
    """`package=version ...` of some packages of a row, for tests/rows/row_versions.py."""
    pins = dict(line.split("==") for line in lock_of(name).read_text(encoding="utf-8").splitlines() if "==" in line)
    return " ".join(f"{package}={pins[package]}" for package in packages)
