"""The software NPU's build: once even if two ask at once, nothing half made, and plain words where it can't be made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.softnpu_env import ROOT

pytestmark = pytest.mark.timeout(1800)
BUILD = ROOT / "testing/softnpu/build.py"
MAKE_SLOWLY = f"""
import sys, time
sys.path.insert(0, {str(BUILD.parent)!r})
import build

def make(made):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    time.sleep(0.5)
    if len(sys.argv) > 2:
        raise SystemExit("interrupted")
    (made / "_C.so").write_text("whole")

print((build.cached("one", make) / "_C.so").read_text())
"""


def test_two_builds_at_once_make_one(tmp_path: Path) -> None:
    environment = {**os.environ, "SOFTNPU_CACHE": str(tmp_path / "cache")}
    log = tmp_path / "log"
    broken = subprocess.run([sys.executable, "-c", MAKE_SLOWLY, str(log), "x"], env=environment, check=False)
    assert broken.returncode
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["one.lock"]
    command = [sys.executable, "-c", MAKE_SLOWLY, str(log)]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=280)[0] for process in both] == ["whole\n", "whole\n"]
    assert log.read_text() == "made\n" * 2  # the interrupted one, and one of these two


@pytest.mark.torch
@pytest.mark.parametrize(
    ("variables", "code", "words"),
    [
        ({"CXX": "no-such-compiler"}, 2, "no C++ compiler: no-such-compiler is not on PATH (install g++ or set CXX)"),
        ({"CXX": "true"}, 1, "the compiler failed"),  # a compiler that makes nothing
    ],
)
def test_why_it_cannot_be_built(variables: dict[str, str], code: int, words: str, tmp_path: Path) -> None:
    environment = {**os.environ, **variables, "SOFTNPU_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, str(BUILD)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
