"""The fault is there (drop the module when it isn't), and the way round works."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

_LOAD = """
import io, torch
{before}
file = io.BytesIO()
torch.save({{"a": torch.arange(3)}}, file)
file.seek(0)
print(torch.load(file, map_location=torch.device("cpu:0"), weights_only=True)["a"].tolist())
"""


def load(before: str) -> subprocess.CompletedProcess[str]:
    code = _LOAD.format(before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1500)


def test_torch_still_refuses_an_indexed_cpu() -> None:
    assert "don't know how to restore data location" in load("").stderr


def test_accepted_after_the_mend() -> None:
    mend = "from ascent.compat.cpu_index import accept_cpu_index; accept_cpu_index(); accept_cpu_index()"
    assert load(mend).stdout.strip() == "[0, 1, 2]"
