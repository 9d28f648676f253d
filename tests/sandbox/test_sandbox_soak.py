"""Ten thousand programs, some hanging and some crashing, leave nothing behind."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import wait_until

from ascent.sandbox import FunctionTest, Limits, Outcome, Program, Sandbox, StdioTest, Test
from ascent.sandbox.attack import processes_below

pytestmark = pytest.mark.timeout(1800)
GOOD = "def f(n):\n    return [n] * 100\n"
HANGING = "def f(n):\n    while True:\n        pass\n"
CRASHING = (
    "import ctypes\ndef f(n):\n    ctypes.string_at(0)\n",
    "import os\ndef f(n):\n    os._exit(1)\n",
    "def f(n):\n    return bytearray(1 << 40)\n",
    "open('left', 'w').write('x' * 100000)\nraise SystemExit\n",
    "def f(n):\n    return 'x' * 30_000_000\n",
)
# Only what hangs meets a limit; what ends by itself takes 0.2 s of CPU time at most.
AMPLE = Limits(wall_seconds=60.0, cpu_seconds=20.0)
SHORT = Limits(wall_seconds=60.0, cpu_seconds=0.2)


def programs(count: int) -> Iterator[tuple[Program, list[Test], Limits]]:
    """One in twenty hangs, one in twenty crashes, one in twenty reads and prints."""
    for number in range(count):
        tests: list[Test] = [FunctionTest("f", (number,), [number] * 100)]
        if number % 20 == 7:
            yield Program(HANGING), tests, SHORT
        elif number % 20 == 13:
            yield Program(CRASHING[number // 20 % len(CRASHING)]), tests, AMPLE
        elif number % 20 == 17:
            yield Program("print(input())"), [StdioTest(str(number), str(number))], AMPLE
        else:
            yield Program(GOOD), tests, AMPLE


def run(sandbox: Sandbox, count: int) -> Counter[Outcome]:
    """Judge `count` programs; how many had which outcome."""
    futures = [sandbox.submit(program, tests, limits) for program, tests, limits in programs(count)]
    return Counter(future.result().outcomes[0] for future in futures)


def resident() -> int:
    """Kilobytes of this process's children, all slots together."""
    total = 0
    for pid in processes_below(os.getpid()):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return total


def at_rest() -> int:
    """`resident`, once it has stayed the same: slots answer before they let go of what they answered."""
    seen = [resident()]

    def settled() -> bool:
        seen.append(resident())
        time.sleep(0.05)
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    wait_until(settled, "memory that stays the same")
    return seen[-1]


def soak(count: int, warm_up: int) -> None:
    with Sandbox(slots=2, nice=0) as sandbox:
        run(sandbox, warm_up)
        processes, before = len(processes_below(os.getpid())), at_rest()
        outcomes = run(sandbox, count)
        wait_until(lambda: resident() <= 1.05 * before, f"{before} KB, which became {resident()} KB")
        assert len(processes_below(os.getpid())) == processes
        assert sandbox.stats.slot_restarts == 0
        assert sandbox.stats.infrastructure_errors == 0
    assert outcomes[Outcome.PASSED] == count * 18 // 20
    assert outcomes[Outcome.TIMEOUT] == count // 20
    assert outcomes.total() == count


def test_hundreds_of_programs_leave_nothing() -> None:
    soak(200, warm_up=100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_programs_leave_nothing() -> None:
    soak(10_000, warm_up=400)
