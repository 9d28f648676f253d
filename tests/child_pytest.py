"""Tests run once more in one other pytest process: with other packages, or on another device. Each is told apart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class ChildRun:
    """What became of each test, by node id; `output` is the process's own."""

    messages: dict[str, str]  # "" for a pass
    output: str

    def check(self, node_id: str) -> None:
        """Fail or skip as the test did (for a file, or several cases: as those in it), and fail when it did not run."""
        inside = [name for name in self.messages if name.startswith((f"{node_id}::", f"{node_id}["))]
        for name in inside:
            self.check(name)
        if inside:
            return
        if node_id not in self.messages:
            pytest.fail(f"{node_id} did not run; the process said:\n{self.output[-3000:]}")
        outcome, _, message = self.messages[node_id].partition(":")
        if outcome == "skipped":
            pytest.skip(message)
        if outcome:
            pytest.fail(message)


def run_tests(
    node_ids: Sequence[str],
    folder: Path,
    *,
    python: str = sys.executable,
    path: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    seconds: float = 1500,
) -> ChildRun:
    """Run `node_ids` with `path` before everything else that Python imports from."""
    results = folder / "results.xml"
    command = [python, "-m", "pytest", "-q", f"--junitxml={results}", "-o", "junit_family=xunit1", *options, *node_ids]
    kept = {name: value for name, value in os.environ.items() if name not in {"ACCELERATE_USE_CPU", "PYTEST_ADDOPTS"}}
    variables = {
        **kept,
        "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT / "src"))),
        **(environment or {}),
    }
    with (folder / "output.txt").open("w+", encoding="utf-8") as output:
        try:
            subprocess.run(
                command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            output.write(f"\nno end within {seconds} s")
        output.seek(0)
        said = output.read()
    messages: dict[str, str] = {}
    if results.is_file():
        for case in ElementTree.parse(results).iter("testcase"):
            node_id = f"{case.get('file')}::{case.get('name')}"
            messages[node_id] = next(
                (
                    f"{part.tag}:{part.get('message')}\n{part.text or ''}"
                    for part in case
                    if part.tag in {"failure", "error", "skipped"}
                ),
                "",
            )
    return ChildRun(messages, said)
