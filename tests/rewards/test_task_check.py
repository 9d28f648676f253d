"""`ascent tasks check` with the real sandbox: each planted fault is found and named, sound tasks are left in peace."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascent.cli import main
from ascent.rewards.task_check.one_task import check_task
from ascent.rewards.task_check.programs import Bench
from ascent.rewards.task_check.slightly_wrong import CheckSettings
from ascent.rewards.task_check.whole_set import check_source
from ascent.sandbox import Sandbox
from ascent.sandbox.types import AssertTest, FunctionTest, Limits, StdioTest
from ascent.tasks.checking.findings import KINDS, Finding
from ascent.tasks.jsonl import task_from_row, write_tasks
from ascent.types import Task

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Sandbox(slots=1, require="none", nice=0) as sandbox:
        yield Bench(sandbox)


def calls(*pairs: tuple[Any, Any], function: str = "f", **how: Any) -> tuple[FunctionTest, ...]:
    return tuple(FunctionTest(function, (given,), expected, **how) for given, expected in pairs)


SOUND = Task(
    "sound",
    "Write a function f(xs) that returns the sum of the numbers above 10 in xs.",
    calls(([1, 20, 30], 50), ([], 0)),
    calls(([11], 11), ([10], 0), ([9, 12, -3], 12), ([11, 11, 5], 22), ([100, 10, 11], 111)),
    entry_point="f",
    reference="def f(xs):\n    return sum(x for x in xs if x > 10)\n",
)


def found(task: Task, bench: Bench, mutants: int = 20) -> dict[str, Finding]:
    settings = CheckSettings(repeats=2, mutants=mutants)
    return {finding.kind: finding for finding in check_task(task, bench, settings).findings}


def serious(findings: dict[str, Finding]) -> set[str]:
    return {kind for kind in findings if KINDS[kind] != "note"}


def test_a_sound_task_has_no_finding(bench: Bench) -> None:
    check = check_task(SOUND, bench, CheckSettings())
    assert not [finding for finding in check.findings if finding.level != "note"]
    assert check.mutants.made >= 5
    assert check.mutants.wrong == 0


PLANTED = {
    "reference-fails": replace(SOUND, reference="def f(xs):\n    return sum(x for x in xs if x >= 10)\n"),
    "flaky": replace(
        SOUND,
        reference="import random\ndef f(xs):\n    return sum(x for x in xs if x > 10) - (random.random() < 0.5)\n",
    ),
    "order-dependent": replace(
        SOUND,
        reference="seen = []\ndef f(n):\n    seen.append(n)\n    return len(seen)\n",
        visible_tests=calls((5, 1)),
        hidden_tests=calls((5, 2), (7, 3)),
    ),
    "trivial-passes": replace(SOUND, visible_tests=calls(([], 0)), hidden_tests=calls(([1], 0), ([2], 0))),
    "too-slow": replace(
        SOUND,
        reference="import time\ndef f(xs):\n    time.sleep(9)\n    return sum(xs)\n",
        limits=Limits(wall_seconds=0.3),
    ),
    "slow": replace(
        SOUND,
        reference="import time\ndef f(n):\n    time.sleep(0.25)\n    return n + 1\n",
        visible_tests=calls((1, 2)),
        hidden_tests=calls((5, 6)),
        limits=Limits(wall_seconds=0.9),
    ),
    "changes-its-answer": replace(
        SOUND,
        reference="import random\ndef f(xs):\n    return random.sample([x + x for x in xs], len(xs))\n",
        visible_tests=calls(([1, 2, 3, 4, 5, 6, 7], [14, 12, 10, 8, 6, 4, 2]), unordered=True),
        hidden_tests=calls((list(range(30)), list(range(0, 60, 2))), ([1, 3], [6, 2]), unordered=True),
    ),
    "mutants-pass": replace(
        SOUND, visible_tests=calls(([1, 20, 30], 50), ([], 0)), hidden_tests=calls(([40], 40), ([5, 6], 0))
    ),
    "no-hidden-tests": replace(SOUND, visible_tests=SOUND.tests, hidden_tests=()),
    "hidden-repeats-visible": replace(SOUND, visible_tests=SOUND.tests, hidden_tests=SOUND.tests[:3]),
    "no-reference": replace(SOUND, reference=None),
    "tests-in-prompt": replace(SOUND, prompt="Write f. f([11]) is 11, f([10]) is 0, f([9, 12, -3]) is 12."),
    "solution-in-prompt": replace(SOUND, prompt="Write f:\n    return sum((x for x in xs if x > 10))"),
    "not-run": replace(SOUND, prelude="import no_such_package\n"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_found_and_no_other(kind: str, bench: Bench) -> None:
    findings = found(PLANTED[kind], bench, mutants=0 if kind == "slow" else 20)
    assert serious(findings) == {kind}, findings
    assert findings[kind].add


def test_all_kinds_that_one_task_can_have_are_planted() -> None:
    serious_kinds = {kind for kind, level in KINDS.items() if level != "note"}
    assert serious_kinds - set(PLANTED) == {"duplicate-over-split"}


def test_the_suggested_test_fails_what_passed(bench: Bench) -> None:
    """With the tests that are named the finding is gone, and the reference still passes."""
    task = PLANTED["mutants-pass"]
    for _ in range(5):
        finding = found(task, bench).get("mutants-pass")
        if finding is None:
            break
        named = "[" + finding.add.partition("such as ")[2].replace("; {", ", {") + "]"
        row = {"id": "x", "prompt": "x", "hidden_tests": json.loads(named)}
        task = replace(task, hidden_tests=(*task.hidden_tests, *task_from_row(row).hidden_tests))
    assert "mutants-pass" not in found(task, bench)
    assert "reference-fails" not in found(task, bench)
    assert len(task.hidden_tests) <= 8


def test_wrong_programs_that_pass_the_visible_tests_alone_are_a_note(bench: Bench) -> None:
    task = replace(SOUND, visible_tests=SOUND.visible_tests[:1])
    assert "visible-tests-weak" in found(task, bench)
    assert check_task(task, bench, CheckSettings()).mutants.visible_only > 0


def test_asserts_and_programs_that_read_input(bench: Bench) -> None:
    asserted = replace(
        SOUND,
        visible_tests=(AssertTest("assert f([1, 20]) == 20"),),
        hidden_tests=(AssertTest("assert f([40, 50]) == 90"), AssertTest("assert f([]) == 0")),
    )
    assert serious(found(asserted, bench)) == {"mutants-pass"}
    reads = Task(
        "reads",
        "Print the double of each number.",
        (StdioTest("1 2\n", "2 4\n"),),
        (StdioTest("5\n", "10\n"), StdioTest("-3 0 7\n", "-6 0 14\n")),
        reference="print(*(2 * int(word) for word in input().split()))\n",
    )
    assert serious(found(reads, bench)) == set()
    echoes = replace(reads, visible_tests=(StdioTest("1\n", "1\n"),), hidden_tests=(StdioTest("5\n", "5\n"),))
    assert found(replace(echoes, reference="print(input())"), bench)["trivial-passes"].evidence == ("prints its input",)


@pytest.mark.parametrize(
    "reference",
    [
        "import os\nos._exit(0)\n",
        "while True: pass\n",
        "def f(xs):\n    return f(xs)\n",
        "def f(xs):\n    print('x' * 10_000_000)\n    return 1\n",
        "import os\ndef f(xs):\n    os.kill(os.getppid(), 9)\n    return 1\n",
        "class A:\n    def __eq__(self, other): return True\ndef f(xs): return A()\n",
        "x = " + "(" * 3000 + ")" * 3000,
    ],
)
def test_a_hostile_reference_is_a_finding_and_nothing_more(reference: str, bench: Bench) -> None:
    task = replace(SOUND, reference=reference, limits=Limits(wall_seconds=1, cpu_seconds=0.2))
    began = time.monotonic()
    assert serious(found(task, bench)) <= {"reference-fails", "too-slow", "flaky"}
    assert time.monotonic() - began < 60
    assert not (serious(found(SOUND, bench))), "the sandbox goes on"


def test_a_mutant_that_never_ends_is_given_little_time(bench: Bench) -> None:
    reference = "def f(n):\n    total = 0\n    while n > 0:\n        total += n\n        n -= 1\n    return total\n"
    task = replace(
        SOUND, reference=reference, visible_tests=calls((3, 6)), hidden_tests=calls((0, 0), (1, 1), (10, 55))
    )
    began = time.monotonic()
    assert serious(found(task, bench)) <= {"mutants-pass"}
    assert time.monotonic() - began < 30


# ---- whole sets, and the command -------------------------------------------------------------------------------------


def test_a_file_is_checked_over_its_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tasks.jsonl"
    others = [
        replace(
            SOUND,
            id=f"above/{n}",
            prompt=f"Sum what lies above {n}.",
            reference=f"def f(xs):\n    return sum(x for x in xs if x > {n})\n",
            visible_tests=calls(([n + 1, n + 2, 0], 2 * n + 3), ([], 0)),
            hidden_tests=calls(([n], 0), ([n + 1], n + 1), ([n + 1] * 2, 2 * n + 2), ([-1, n + 5], n + 5)),
        )
        for n in (20, 30)
    ]
    write_tasks(file, others)
    held = tmp_path / "held.jsonl"
    write_tasks(held, [replace(others[0], id="again", prompt="Add up all that is larger than twenty.")])
    assert main(["tasks", "check", str(file), "--held-out", "0", "--mutants", "8", "--slots", "1"]) == 0
    assert "no errors or warnings" in capsys.readouterr().out
    assert main(["tasks", "check", str(file), "--held-out", str(held), "--mutants", "4", "--slots", "1", "--json"]) == 1
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert content["schema"] == "ascent.tasks.check/1"
    assert (content["train"], content["held_out"]) == (2, 1)
    assert content["counts"]["duplicate-over-split"] == 1
    worst = content["tasks"][0]
    assert worst["task_id"] == "again"
    assert worst["findings"][0]["level"] == "warning"
    assert worst["findings"][0]["evidence"] == ["above/20"]
    assert "again" in printed.err
    assert "training has above/20" in printed.err


def test_the_worst_comes_first_and_text_of_tasks_steers_no_terminal(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    bad = replace(PLANTED["reference-fails"], id="bad\x1b[2J")
    write_tasks(file, [replace(SOUND, id="weak", hidden_tests=()), SOUND, bad])
    report = check_source(str(file), held_out=0, settings=CheckSettings(mutants=4), slots=1, require="none")
    text = report.to_text()
    assert "\x1b" not in text
    assert text.index("bad\ufffd[2J") < text.index("weak (")
    assert not report.good
    assert len(report.checks) == 3
    assert "sound (" not in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no_such.jsonl"], "there is no task file"),
        (["builtin:nothing"], "there is no built-in family"),
        (["builtin", "--held-out", "1.5"], "must lie above 0 and not above 0.5"),
        (["builtin", "--repeats", "1"], "--repeats 1: expected at least 2"),
        (["builtin", "--packages", "no_such_package_here"], "no_such_package_here"),
    ],
)
def test_refusals(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", *words]) == 2
    assert says in capsys.readouterr().err


def test_rows_that_cant_be_used_are_told(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    write_tasks(file, [SOUND])
    file.write_text(file.read_text() + '{"id": "x"}\n')
    report = check_source(str(file), held_out=0, settings=CheckSettings(mutants=0), slots=1, require="none")
    assert not report.good
    assert "tasks.jsonl:2" in report.to_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", ["arithmetic", "strings", "dictionaries"])
def test_built_in_tasks_are_sound(family: str) -> None:
    report = check_source(f"builtin:{family}", settings=CheckSettings(mutants=8))
    errors = [finding for finding in report.findings if finding.level == "error"]
    assert not errors
    assert "duplicate-over-split" not in report.counts()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (DATA / "humaneval.jsonl").is_file(), reason="the public sets are not there")
def test_a_public_set(tmp_path: Path) -> None:
    report = check_source(str(DATA / "humaneval.jsonl"), limit=40, settings=CheckSettings(mutants=8))
    assert report.counts().get("reference-fails", 0) == 0
    assert report.counts().get("some-tests-in-prompt", 0) + report.counts().get("tests-in-prompt", 0) > 10
