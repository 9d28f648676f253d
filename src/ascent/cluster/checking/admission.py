"""Does the cluster ask for a token? Proven by somebody without one: a process that tries to read from the head."""

from __future__ import annotations

import os
import subprocess
import sys

from ascent.environment import Finding
from ascent.environment.rules import found

_SECONDS = 60.0
_LET_IN, _REFUSED = 10, 11
_STRANGER = f"""
import sys
from ray import exceptions
from ray._raylet import GcsClient
refusal = getattr(exceptions, "AuthenticationError", ())
try:
    GcsClient(address=sys.argv[1]).internal_kv_get(b"session_name", b"session", timeout=10)
except refusal:
    sys.exit({_REFUSED})
sys.exit({_LET_IN})
"""


def check_admission(address: str) -> list[Finding]:
    """A912, of the head at HOST:PORT."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    try:
        stranger = subprocess.run(
            [sys.executable, "-c", _STRANGER, address],
            env=known | {"RAY_AUTH_MODE": "disabled"},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [_unknown(f"no answer within {_SECONDS:.0f} s")]
    if stranger.returncode == _REFUSED:
        return [found("A912", "ok", "the cluster refuses whoever has no token")]
    if stranger.returncode != _LET_IN:
        return [_unknown((stranger.stderr.strip() or f"exit code {stranger.returncode}").splitlines()[-1])]
    if not _has_tokens():
        text = "this release of Ray has no tokens: whoever reaches the cluster's ports runs programs on its machines"
        return [found("A912", "warning", text, mend=["keep the cluster's ports closed to other machines", _NEWER])]
    return [found("A912", "error", "the cluster lets anybody in: it has no token")]


_NEWER = "or take a Ray that has tokens (2.52 or later), where the rest of the image allows it"


def _unknown(why: str) -> Finding:
    return found("A912", "warning", "whether the cluster asks for a token couldn't be found out", evidence=[why])


def _has_tokens() -> bool:
    from ray import exceptions

    return hasattr(exceptions, "AuthenticationError")
