"""The judges of several nodes behind the sandbox's own seam, each in this process with a real sandbox."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from typing import Any

import pytest

from ascent.cluster.judging import pool as pool_module
from ascent.cluster.judging.actors import wait_for_judges
from ascent.cluster.judging.messages import load_about
from ascent.cluster.judging.pool import JudgePool
from ascent.errors import InputError
from ascent.rewards.code import CodeReward
from ascent.sandbox import (
    AssertTest,
    FunctionTest,
    Limits,
    Outcome,
    Program,
    Sandbox,
    SandboxClosedError,
    SandboxError,
    StdioTest,
    Verdict,
)
from ascent.sandbox.errors import InvalidTestError
from ascent.types import Task
from tests.cluster.near_judge import SETTINGS, NearJudge

LIMITS = Limits(wall_seconds=5.0, cpu_seconds=1.0)
DOUBLE = [FunctionTest("f", (n,), 2 * n) for n in range(3)]
RIGHT, WRONG = Program("def f(n): return 2 * n"), Program("def f(n): return n * n")
SLOW = Program("import time\ntime.sleep(0.6)\ndef f(n): return 2 * n")


@pytest.fixture(scope="module")
def three() -> Iterator[list[NearJudge]]:
    judges = [NearJudge() for _ in range(3)]
    if judges[0].node._sandbox is None:
        pytest.skip(f"no confinement here: {judges[0].node._error}")
    yield judges
    for judge in judges:
        judge.close()


@pytest.fixture
def judges(three: list[NearJudge]) -> list[NearJudge]:
    """The same sandboxes for all tests."""
    for judge in three:
        if judge.lost:
            judge.come_back()
        judge.silent = False
        judge.asked.clear()
    return three


def opened(judges: Sequence[NearJudge], **settings: Any) -> JudgePool:
    named = {f"node {number}": judge for number, judge in enumerate(judges)}
    about = {}
    for label, judge in named.items():
        said: Future[object] = Future()
        judge.about(said.set_result)
        about[label] = load_about(said.result(10))
    return JudgePool(named, about, limits=LIMITS, require="confined", **settings)


def sources(judge: NearJudge) -> list[str]:
    return [row[0] for text in judge.asked for row in json.loads(text)["programs"]]


def test_verdicts_are_those_of_the_sandbox(judges: list[NearJudge]) -> None:
    cases: list[tuple[Program, list[Any]]] = [
        (RIGHT, DOUBLE),
        (WRONG, DOUBLE),
        (Program("def f(n): return 'unclosed"), DOUBLE),
        (Program("import os\nos._exit(0)"), DOUBLE),
        (Program("while True: pass"), DOUBLE[:1]),
        (Program("print(input()[::-1])"), [StdioTest("abc\n", "cba\n"), StdioTest("x\n", "y\n")]),
        (Program("def f(n): return g(n)", prelude="def g(n): return 2 * n"), DOUBLE),
        (RIGHT, [AssertTest("x = f(2)\nassert x == 4"), AssertTest("assert f(1) == 3")]),
        (Program("\ud800"), DOUBLE),
        (RIGHT, []),
    ]
    with Sandbox(slots=1, limits=LIMITS, nice=0) as sandbox, opened(judges) as pool:
        expected = [sandbox.submit(program, tests).result() for program, tests in cases]
        got = [future.result(60) for future in [pool.submit(program, tests) for program, tests in cases]]
        assert (pool.slots, pool.level) == (3, sandbox.level)
    for one, other in zip(expected, got, strict=True):
        assert (one.outcomes, one.compiled, one.level) == (other.outcomes, other.compiled, other.level)
        assert (one.output, one.error) == (other.output, other.error)
    assert {outcome for verdict in got for outcome in verdict.outcomes} >= {
        Outcome.PASSED,
        Outcome.FAILED,
        Outcome.ERROR,
        Outcome.TIMEOUT,
    }


def test_limits_of_a_program_travel(judges: list[NearJudge]) -> None:
    with opened(judges[:1]) as pool:
        short = pool.submit(SLOW, DOUBLE, Limits(wall_seconds=0.2, cpu_seconds=0.2)).result(60)
        assert Outcome.TIMEOUT in short.outcomes
        assert pool.submit(SLOW, DOUBLE).result(60).all_passed


def test_tests_travel_once_to_a_node(judges: list[NearJudge]) -> None:
    with opened(judges) as pool:
        for future in [pool.submit(RIGHT, DOUBLE) for _ in range(60)]:
            assert future.result(60).all_passed
        for future in [pool.submit(RIGHT, DOUBLE[:2]) for _ in range(30)]:
            assert future.result(60).all_passed
    for judge in judges:
        sent = [digest for text in judge.asked for digest in json.loads(text)["tests"]]
        assert len(sent) == len(set(sent)) == 2
        assert len(judge.asked) > 2


def test_a_judge_that_began_anew_is_told_the_tests_again(judges: list[NearJudge]) -> None:
    with opened(judges[:1]) as pool:
        assert pool.submit(RIGHT, DOUBLE).result(60).all_passed
        judges[0].come_back()
        assert pool.submit(RIGHT, DOUBLE).result(60).all_passed


def test_a_lost_node_loses_no_verdict(judges: list[NearJudge], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_RETRY", 0.1)
    with opened(judges) as pool:
        futures = [pool.submit(SLOW if n % 15 == 0 else RIGHT if n % 2 else WRONG, DOUBLE) for n in range(90)]
        while sum(future.done() for future in futures) < 20:
            time.sleep(0.01)
        judges[1].lose()
        verdicts = [future.result(60) for future in futures]
        assert [verdict.infrastructure_error for verdict in verdicts] == [None] * 90
        expected = [n % 15 == 0 or n % 2 == 1 for n in range(90)]
        assert [verdict.all_passed for verdict in verdicts] == expected
        judges[1].come_back()
        before = len(judges[1].asked)
        ends = time.monotonic() + 30
        while len(judges[1].asked) == before and time.monotonic() < ends:
            pool.submit(RIGHT, DOUBLE).result(60)
            time.sleep(0.05)
        assert len(judges[1].asked) > before, "a node that is back judges again"


def test_a_program_that_is_lost_twice_is_masked(judges: list[NearJudge]) -> None:
    with opened(judges) as pool:
        future = pool.submit(SLOW, DOUBLE)
        for _ in range(2):
            holder = wait_for_holder(judges)
            holder.lose()
        verdict = future.result(30)
        assert verdict.infrastructure_error is not None
        assert "lost" in verdict.infrastructure_error
        assert verdict.outcomes == (Outcome.NOT_RUN,) * 3
        assert pool.submit(RIGHT, DOUBLE).result(60).all_passed  # the third node goes on
    scored = CodeReward([Task("t", "p", visible_tests=tuple(DOUBLE))], sandbox=pool).score(verdict)
    assert scored.total is None


def wait_for_holder(judges: Sequence[NearJudge]) -> NearJudge:
    """The judge that has the slow program now."""
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        for judge in judges:
            if not judge.lost and SLOW.source in sources(judge):
                return judge
        time.sleep(0.01)
    raise AssertionError("no judge has the program")


def test_without_any_node_programs_are_masked_in_the_end(
    judges: list[NearJudge], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(judges[:2]) as pool:
        for judge in judges[:2]:
            judge.lose(for_good=True)
        verdicts = [pool.submit(RIGHT, DOUBLE).result(30) for _ in range(3)]
        assert all(verdict.infrastructure_error for verdict in verdicts)
    monkeypatch.setattr(pool_module, "_PATIENCE", 0.5)
    judges[0].come_back()
    with opened(judges[:1]) as pool:
        judges[0].lose()
        verdict = pool.submit(RIGHT, DOUBLE).result(30)
        assert "no node is left" in str(verdict.infrastructure_error)


def test_a_silent_node_is_given_up(judges: list[NearJudge], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stands and nothing comes: as of a machine that hangs."""
    monkeypatch.setattr(pool_module, "_PING", 0.1)
    monkeypatch.setattr(pool_module, "_SILENCE", 1.0)
    with opened(judges[:2]) as pool:
        judges[0].silent = True
        verdicts = [future.result(60) for future in [pool.submit(RIGHT, DOUBLE) for _ in range(20)]]
        assert all(verdict.all_passed for verdict in verdicts)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "",
        b"bytes",
        '{"verdicts": [], "missing": []}',
        '{"verdicts": [{"compiled": true}], "missing": []}',
        '{"verdicts": [], "missing": ["0"]}',
    ],
)
def test_what_isnt_a_verdict_counts_for_nothing(
    judges: list[NearJudge], monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    monkeypatch.setattr(judges[0], "judge", lambda request, heard: heard(answer))
    with opened(judges[:2]) as pool:
        verdicts = [future.result(60) for future in [pool.submit(RIGHT, DOUBLE) for _ in range(10)]]
        assert all(verdict.all_passed for verdict in verdicts), "the other node has judged them"
        assert len(sources(judges[1])) == 10
    monkeypatch.setattr(judges[1], "judge", lambda request, heard: heard(answer))
    with opened(judges[:2]) as pool:
        verdict = pool.submit(RIGHT, DOUBLE).result(60)
        assert verdict.infrastructure_error
        assert not verdict.compiled


def test_a_forged_level_isnt_taken(judges: list[NearJudge], monkeypatch: pytest.MonkeyPatch) -> None:
    real = judges[0].judge

    def weaker(request: str, heard: Any) -> None:
        real(request, lambda said: heard(str(said).replace('"namespaced"', '"none"').replace('"confined"', '"none"')))

    monkeypatch.setattr(judges[0], "judge", weaker)
    with opened(judges[:1]) as pool:
        assert "less well" in str(pool.submit(RIGHT, DOUBLE).result(60).infrastructure_error)


def test_a_fault_of_ours_reaches_the_caller(judges: list[NearJudge], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges[0], "judge", lambda request, heard: heard(RuntimeError("a bug")))
    with opened(judges[:1]) as pool, pytest.raises(SandboxError, match=r"node 0 failed: a bug"):
        pool.submit(RIGHT, DOUBLE).result(60)

    def broken(request: str, heard: Any) -> None:
        raise RuntimeError("Ray was shut down")

    monkeypatch.setattr(judges[0], "judge", broken)
    pool = opened(judges[:1])
    closed: list[bool] = []
    needed = ExitStack()
    needed.callback(closed.append, True)
    pool.close_after(needed)
    with pytest.raises(SandboxError, match="Ray was shut down"):
        pool.submit(RIGHT, DOUBLE).result(60)
    with pytest.raises(SandboxClosedError):
        pool.submit(RIGHT, DOUBLE)
    pool.close()
    pool.close()
    assert closed == [True], "a pool that failed leaves nothing open either"


def test_what_cant_be_judged_is_refused_at_once(judges: list[NearJudge]) -> None:
    with opened(judges) as pool:
        with pytest.raises(InvalidTestError, match="plain data"):
            pool.submit(RIGHT, [FunctionTest("f", (object(),), 0)])
        with pytest.raises(InvalidTestError, match="allow_in_process"):
            pool.submit(RIGHT, [AssertTest("assert f(1)", in_process=True)])
        with pytest.raises(InvalidTestError, match="stdio"):
            pool.check("c", DOUBLE)
        pool.check("python", DOUBLE)
        with pytest.raises(SandboxError, match=r"node 0: the prelude fails.*node 2: the prelude fails"):
            pool.check("python", DOUBLE, "1 / 0")


def test_a_compiler_must_be_on_every_node(judges: list[NearJudge], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def check(language: str, prelude: str, heard: Any) -> None:
        asked.append(language)
        heard("rustc isn't installed" if language == "rust" else "")

    monkeypatch.setattr(judges[1], "check", check)
    with opened(judges[1:2]) as pool:
        for _ in range(2):
            with pytest.raises(SandboxError, match="node 0: rustc isn't installed"):
                pool.submit(Program("fn main() {}", "rust"), [StdioTest("", "")])
    assert asked == ["rust"]


def test_closing_ends_what_waits(judges: list[NearJudge]) -> None:
    pool = opened(judges[:1])
    futures = [pool.submit(SLOW, DOUBLE) for _ in range(6)]
    while not futures[0].running():
        time.sleep(0.01)
    pool.close()
    pool.close()
    ends = []
    for future in futures:
        with pytest.raises((CancelledError, SandboxClosedError)) as ended:
            future.result(1)
        ends.append(ended.type)
    assert ends[0] is SandboxClosedError
    assert ends[-1] is CancelledError
    with pytest.raises(SandboxClosedError):
        pool.submit(RIGHT, DOUBLE)


def test_several_threads_may_ask(judges: list[NearJudge]) -> None:
    verdicts: list[Verdict] = []

    def ask() -> None:
        verdicts.extend(future.result(60) for future in [pool.submit(RIGHT, list(DOUBLE)) for _ in range(8)])

    with opened(judges) as pool:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(verdicts) == 32
    assert all(verdict.all_passed for verdict in verdicts)


def test_a_callback_may_submit(judges: list[NearJudge]) -> None:
    """As the audit does, from the thread that sets the verdict."""
    followed: Future[Future[Verdict]] = Future()
    with opened(judges) as pool:
        first = pool.submit(RIGHT, DOUBLE)
        first.add_done_callback(lambda done: followed.set_result(pool.submit(WRONG, DOUBLE, later=True)))
        assert not followed.result(30).result(30).all_passed


def test_a_judge_says_why_it_cant(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = NearJudge(require="namespaced", at_most="confined")
    said: Future[object] = Future()
    judge.about(said.set_result)
    assert "level 'namespaced' was required" in load_about(said.result(10)).error
    assert SETTINGS["require"] == "confined"


def test_a_judge_that_was_lost_since_the_start_is_left_out(judges: list[NearJudge]) -> None:
    named = {f"node {number}": judge for number, judge in enumerate(judges)}
    judges[1].lose()
    assert wait_for_judges(named, 0.1, all_of_them=False).keys() == {"node 0", "node 2"}
    with pytest.raises(InputError, match="node 1: its judge ended: it was lost"):
        wait_for_judges(named, 0.1)
    for judge in judges:
        judge.lose()
    with pytest.raises(InputError, match=r"node 0: its judge ended(.|\n)*node 2"):
        wait_for_judges(named, 0.1, all_of_them=False)
