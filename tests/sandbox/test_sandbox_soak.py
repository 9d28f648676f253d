"""Ten thousand programs, some hanging and some crashing, leave nothing behind."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascent.sandbox import FunctionTest, Limits, Outcome, Program, Sandbox, StdioTest, Test
from ascent.sandbox.attack import processes_below

GOOD = "def f(n):\n    return [n] * 100\n"
HANGING = "def f(n):\n    while True:\n        pass\n"
CRASHING = (
    "import ctypes\ndef f(n):\n    ctypes.string_at(0)\n",
    "import os\ndef f(n):\n    os._exit(1)\n",
    "def f(n):\n    return bytearray(1 << 40)\n",
    "open('left', 'w').write('x' * 100000)\nraise SystemExit\n",
    "def f(n):\n    return 'x' * 30_000_000\n",
)
QUICK = Limits(wall_seconds=5.0, cpu_seconds=0.2)


def programs(count: int) -> Iterator[tuple[Program, list[Test]]]:
    """One in twenty hangs, one in twenty crashes, one in twenty reads and prints."""
    for number in range(count):
        tests: list[Test] = [FunctionTest("f", (number,), [number] * 100)]
        if number % 20 == 7:
            yield Program(HANGING), tests
        elif number % 20 == 13:
            yield Program(CRASHING[number // 20 % len(CRASHING)]), tests
        elif number % 20 == 17:
            yield Program("print(input())"), [StdioTest(str(number), str(number))]
        else:
            yield Program(GOOD), tests


def resident() -> int:
    """Kilobytes of this process's children, all slots together."""
    time.sleep(0.5)  # slots answer before they let go of what they answered
    total = 0
    for pid in processes_below(os.getpid()):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return total


def soak(count: int, warm_up: int) -> None:
    with Sandbox(slots=2, limits=QUICK) as sandbox:
        sandbox.run_many(programs(warm_up))
        processes, before = len(processes_below(os.getpid())), resident()
        verdicts = sandbox.run_many(programs(count))
        after = resident()
        assert len(processes_below(os.getpid())) == processes
        assert after <= 1.05 * before, f"{before} KB became {after} KB"
        assert sandbox.stats.slot_restarts == 0
        assert sandbox.stats.infrastructure_errors == 0
    outcomes = Counter(verdict.outcomes[0] for verdict in verdicts)
    assert outcomes[Outcome.PASSED] == count * 18 // 20
    assert outcomes[Outcome.TIMEOUT] == count // 20
    assert outcomes.total() == count


def test_hundreds_of_programs_leave_nothing() -> None:
    soak(200, warm_up=100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_programs_leave_nothing() -> None:
    soak(10_000, warm_up=400)
