"""Rounds in which each system does one step, while the others sleep: A B C A B C."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepping import machine
from stepping.systems import DENSE

_SPOILT = 3
Round = dict[str, dict[str, float]]  # system -> figures
_PROGRAM = Path(__file__).resolve().parents[1] / "step.py"


class Worker:
    """A system in a process of its own."""

    def __init__(self, system: str, workload: str, folder: Path) -> None:
        self.system = system
        self._log = folder / f"{workload}-{system}.log"
        command = [sys.executable, str(_PROGRAM), "--worker", system, workload, str(folder)]
        with self._log.open("w", encoding="utf-8") as log:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self._process = subprocess.Popen(command, text=True, **pipes)

    def answer(self) -> dict[str, Any]:
        """What it says next. Raises SystemExit when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise SystemExit(f"{self.system} ended with {self._process.wait()}:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **what: Any) -> dict[str, Any]:
        """Let it do something, and wait for the answer."""
        self._say(what)
        return self.answer()

    def end(self) -> None:
        """Let it end."""
        try:
            self._say({"do": "end"})
            self._process.wait(timeout=60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()

    def _say(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()


class BusyError(Exception):
    """Somebody else uses the machine."""


def measure(
    workload: str,
    systems: Sequence[str],
    folder: Path,
    *,
    rounds: int,
    warm: int,
    until: float,
    busy_ok: bool,
    keep: Callable[[Round], None],
    tell: Callable[[str], None],
) -> None:
    """Rounds of steps, after `warm` ones that don't count; each is given to `keep` when it is done.

    None begins after `until` (time.monotonic()). A round during which somebody else used the machine is done again;
    raises BusyError after the third such in a row.
    """
    workers: list[Worker] = []
    try:
        for system in systems:  # one after another: starting is work, too
            began = time.monotonic()
            workers.append(Worker(system, workload, folder))
            workers[-1].answer()
            tell(f"{workload}: {system} is ready after {time.monotonic() - began:.0f} s")
        done = spoilt = 0
        while done < warm + rounds:
            if time.monotonic() > until:
                tell(f"{workload}: out of time after {max(0, done - warm)} rounds")
                return
            try:
                found = _round(workers, busy_ok=busy_ok)
            except BusyError as busy:
                spoilt += 1
                tell(f"{workload}: a round is done again: {busy}")
                if spoilt == _SPOILT:
                    raise
                continue
            spoilt = 0
            done += 1
            times = ", ".join(f"{name} {figures['step']:.2f}" for name, figures in found.items() if "step" in figures)
            tell(f"{workload}: {'warm-up' if done <= warm else f'round {done - warm}'}: {times}")
            if done > warm:
                keep(found)
    finally:
        for worker in workers:
            worker.end()


def _round(workers: Sequence[Worker], *, busy_ok: bool) -> Round:
    """One step of each. Raises BusyError when somebody else used the machine meanwhile."""
    found: Round = {}
    for worker in workers:
        if not busy_ok and (who := machine.busy(0.3)):
            raise BusyError(who)
        before = machine.usage()
        if worker.system == DENSE:
            sizes = found.get("ascent") or next(iter(found.values()))
            figures = worker.ask(do="dense", prompt=sizes["mean_prompt"], completion=sizes["mean_completion"])
        else:
            figures = worker.ask(do="step")
        after = machine.usage()
        figures["others"] = after.others_since(before)
        if figures["others"] > machine.TOLERATED and not busy_ok:
            raise BusyError(f"{worker.system}: others used {figures['others']:.2f} cores: {after.names_since(before)}")
        found[worker.system] = figures
    return found
