"""A machine without compiler or lscpu is told before vLLM starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.errors import InputError
from ascent.rollout.prerequisites import check_cpu_engine


def fill(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fill(tmp_path, "g++", "lscpu"))
    monkeypatch.delenv("CXX", raising=False)
    check_cpu_engine()


@pytest.mark.parametrize(
    ("present", "expected", "absent"),
    [
        (("g++",), "the command lscpu", "compiler"),
        (("lscpu",), r"a C\+\+ compiler \(g\+\+ or clang\+\+ was not found", "command lscpu"),
        ((), r"a C\+\+ compiler .*; the command lscpu", "nothing"),
    ],
)
def test_what_is_missing_is_named_with_its_package(
    present: tuple[str, ...], expected: str, absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fill(tmp_path, *present))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(InputError, match=expected) as caught:
        check_cpu_engine()
    assert "apt-get install g++ util-linux" in str(caught.value)
    assert "rollout.engine=transformers" in str(caught.value)
    assert absent not in caught.value.message


def test_a_compiler_named_by_cxx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fill(tmp_path, "my-c++", "lscpu"))
    monkeypatch.setenv("CXX", "my-c++")
    check_cpu_engine()
    monkeypatch.setenv("CXX", "other-c++")
    with pytest.raises(InputError, match=r"CXX=other-c\+\+ was not found"):
        check_cpu_engine()
