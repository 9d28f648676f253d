"""The audit: what passes all visible tests is judged by the hidden ones, once, unpaid, when nothing else waits."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from ascent.rewards.audit import Audit
from ascent.rewards.code import CodeReward, RewardWeights
from ascent.sandbox import Sandbox
from ascent.sandbox.errors import SandboxClosedError
from ascent.sandbox.types import FunctionTest, Limits, Outcome, Program, Test, Verdict
from ascent.types import Task

RIGHT = "def f(x):\n    return x + 1\n"
HOLLOW = "def f(x):\n    return 2\n"  # knows the one visible input
WRONG = "def f(x):\n    return x\n"


def task(name: str = "inc", hidden: int = 3) -> Task:
    return Task(
        id=name,
        prompt="Write f.",
        visible_tests=(FunctionTest("f", (1,), 2),),
        hidden_tests=tuple(FunctionTest("f", (place,), place + 1) for place in range(2, 2 + hidden)),
        entry_point="f",
    )


class Counting:
    """A judge that counts what it is given; its verdicts come when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, bool, Future[Verdict]]] = []
        self.closed = False

    def submit(
        self, program: Program, tests: Sequence[Test], limits: Limits | None = None, *, later: bool = False
    ) -> Future[Verdict]:
        if self.closed:
            raise SandboxClosedError("the sandbox is closed")
        future: Future[Verdict] = Future()
        self.asked.append((program.source, len(tests), later, future))
        return future

    def close(self) -> None:
        self.closed = True


def passed(count: int) -> Verdict:
    return Verdict(True, (Outcome.PASSED,) * count, 0.1)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(slots=1, nice=0) as made:
        yield made


def test_a_hollow_program_is_paid_in_full_and_found_out(sandbox: Sandbox) -> None:
    reward = CodeReward([task()], sandbox=sandbox, weights=RewardWeights(0.1, 0.9), tests="visible", audit=True)
    assert reward([RIGHT, HOLLOW, WRONG], ["inc"] * 3) == pytest.approx([1.0, 1.0, 0.1]), "the audit pays nothing"
    assert [score.visible_tests for score in reward.scores] == [1, 1, 1]
    programs = [score.program for score in reward.scores]
    found = [reward.audited("inc", program) for program in programs[:2]]
    outcomes = [future.result(20) for future in found if future is not None]
    assert outcomes == [(Outcome.PASSED,) * 3, (Outcome.FAILED,) * 3]


def test_an_audit_begins_when_the_program_has_passed_and_once_for_equal_ones() -> None:
    judge = Counting()
    reward = CodeReward([task()], sandbox=judge, tests="visible", audit=True)
    for text in (RIGHT, RIGHT, WRONG):
        reward.start({"task_id": "inc"}, text)
    assert [later for _, _, later, _ in judge.asked] == [False, False], "equal programs once"
    judge.asked[0][3].set_result(passed(1))
    judge.asked[1][3].set_result(Verdict(True, (Outcome.FAILED,), 0.1))
    assert [(count, later) for _, count, later, _ in judge.asked[2:]] == [(3, True)]
    reward([RIGHT, RIGHT, WRONG], ["inc"] * 3)
    judge.asked[2][3].set_result(passed(3))
    for _ in range(2):  # also in later generations, when the reward has forgotten its verdict
        future = reward.audited("inc", judge.asked[0][0])
        assert future is not None
        assert future.result(0) == (Outcome.PASSED,) * 3
    assert len(judge.asked) == 3


@pytest.mark.parametrize("tests", ["hidden", "both"])
def test_there_is_none_where_hidden_tests_are_paid(tests: Any) -> None:
    judge = Counting()
    reward = CodeReward([task()], sandbox=judge, tests=tests, audit=True)
    reward.start({"task_id": "inc"}, RIGHT)
    judge.asked[0][3].set_result(passed(judge.asked[0][1]))
    assert len(judge.asked) == 1
    assert reward.audited("inc", RIGHT) is None


def test_a_task_without_hidden_tests_has_none() -> None:
    judge = Counting()
    reward = CodeReward([task(hidden=0)], sandbox=judge, tests="visible", audit=True)
    reward.start({"task_id": "inc"}, RIGHT)
    judge.asked[0][3].set_result(passed(1))
    assert len(judge.asked) == 1
    assert reward.audited("inc", RIGHT) is None


def test_what_the_sandbox_could_not_judge_is_unknown_and_asked_again() -> None:
    judge = Counting()
    audit = Audit(judge)
    first = audit.of(task(), RIGHT)
    judge.asked[0][3].set_result(Verdict(False, (Outcome.NOT_RUN,) * 3, 0.0, infrastructure_error="a slot died"))
    assert first.result(0) is None
    again = audit.of(task(), RIGHT)
    judge.asked[1][3].cancel()
    assert again.result(0) is None
    judge.close()
    assert audit.of(task(), RIGHT).result(0) is None
    assert len(judge.asked) == 2


def test_a_changed_task_is_another_task() -> None:
    judge = Counting()
    audit = Audit(judge)
    audit.of(task(), RIGHT)
    audit.of(task(), RIGHT)
    other = Audit(judge)
    other.of(task(hidden=2), RIGHT)
    assert [count for _, count, _, _ in judge.asked] == [3, 2]


def test_later_programs_wait_for_all_others() -> None:
    slow = "import time\ntime.sleep(0.3)\ndef f(x):\n    return x + 1\n"
    tests = [FunctionTest("f", (1,), 2)]
    ended: list[str] = []

    def note(name: str, _: Future[Verdict]) -> None:
        ended.append(name)

    with Sandbox(slots=1, nice=0) as made:
        futures = [("running", made.submit(Program(slow), tests))]
        futures += [(f"later {n}", made.submit(Program(RIGHT + f"# {n}"), tests, later=True)) for n in range(3)]
        futures += [(f"paid {n}", made.submit(Program(RIGHT + f"# {n}"), tests)) for n in range(3)]
        for name, future in futures:
            future.add_done_callback(functools.partial(note, name))
        assert made.stats.queued >= 5
        assert all(future.result(20).all_passed for _, future in futures)
    assert ended == ["running", "paid 0", "paid 1", "paid 2", "later 0", "later 1", "later 2"]


def test_a_sandbox_that_closes_cancels_later_programs_too() -> None:
    slow = "import time\ntime.sleep(2)\n"
    with Sandbox(slots=1, nice=0) as made:
        made.submit(Program(slow), [FunctionTest("f", (1,), 2)])
        waiting = made.submit(Program(RIGHT), [FunctionTest("f", (1,), 2)], later=True)
    assert waiting.cancelled()
