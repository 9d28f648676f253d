"""What a task gives its programs beforehand, and what they can't make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascent.rewards.code import CodeReward
from ascent.sandbox import (
    AssertTest,
    FunctionTest,
    Limits,
    Outcome,
    Program,
    Sandbox,
    SandboxError,
    StdioTest,
    Test,
    Verdict,
)
from ascent.sandbox.errors import InvalidTestError
from ascent.sandbox.preludes import modules_of
from ascent.tasks.loading import load_tasks
from ascent.tasks.preludes import APPS, LIVECODEBENCH

P, F, E = Outcome.PASSED, Outcome.FAILED, Outcome.ERROR
PRELUDE = "import math\nfrom math import gcd\nfrom typing import List\n\ndef helper(x):\n    return x + 1\n"


def judge(sandbox: Sandbox, source: str, *tests: Test, prelude: str = PRELUDE) -> Verdict:
    verdict = sandbox.submit(Program(source, prelude=prelude), tests).result()
    assert verdict.infrastructure_error is None
    return verdict


KINDS: list[tuple[str, Test]] = [
    ("def f(x: List[int]): return helper(math.floor(x[0]))", FunctionTest("f", ([1.5],), 2)),
    ("def f(x: List[int]): return helper(math.floor(x[0]))", AssertTest("assert f([1.5]) == 2")),
    ("def f(x: List[int]): return helper(x[0])", AssertTest("y = f([1])\nassert y == 2")),
    ("n: List[int] = []\nprint(helper(int(input())))", StdioTest("1", "2")),
]


@pytest.mark.parametrize(("source", "test"), KINDS)
def test_names_are_there_without_an_import_in_every_kind_of_test(sandbox: Sandbox, source: str, test: Test) -> None:
    assert judge(sandbox, source, test).outcomes == (P,)
    assert judge(sandbox, source, test, prelude="").outcomes == (E,)


def test_the_program_s_lines_and_future_imports_are_its_own(sandbox: Sandbox) -> None:
    source = '"""What it does."""\nfrom __future__ import annotations\n\ndef f(x: Unknown): return x.missing\n'
    verdict = judge(sandbox, source, FunctionTest("f", (1,), 1))
    assert verdict.compiled
    assert "AttributeError" in str(verdict.error)
    traceback = (
        "import traceback\n\ndef f():\n    try: 1 / 0\n    except Exception as e: return e.__traceback__.tb_lineno"
    )
    assert judge(sandbox, traceback, FunctionTest("f", (), 4)).outcomes == (P,)
    printed = judge(sandbox, "x = 1\n\nraise ValueError(x)", StdioTest("", ""))
    assert 'File "<program>", line 3' in printed.output


@pytest.mark.parametrize(
    ("source", "test", "outcome"),
    [
        ("x = 1", FunctionTest("gcd", (4, 6), 2), E),  # the prelude has it, the program doesn't define it
        ("x = 1", FunctionTest("helper", (4,), 5), E),
        ("x = 1", AssertTest("g = gcd(4, 6)\nassert g == 2"), E),
        ("x = 1", FunctionTest("math.gcd", (4, 6), 2), E),
        ("from math import gcd", FunctionTest("gcd", (4, 6), 2), P),
        ("gcd = gcd", FunctionTest("gcd", (4, 6), 2), P),
        ("def gcd(a, b): return 2", FunctionTest("gcd", (4, 6), 2), P),
        ("def helper(x): return 0\ndef f(x): return helper(x)", FunctionTest("f", (1,), 0), P),
        (
            "helper.__code__ = (lambda x: 7).__code__\ndef f(): return 1",
            AssertTest("assert helper(1) == 7 or f() == 1"),
            E,
        ),
        ("__builtins__['helper'] = lambda x: 7\ndef f(): return 1", FunctionTest("helper", (1,), 7), E),
        (
            "class Yes:\n    __eq__ = lambda s, o: True\ndef f(): return Yes()",
            FunctionTest("f", (), [1], as_json=True),
            F,
        ),
        (
            "class Near(float):\n    __sub__ = __rsub__ = lambda s, o: 0.0\n    __eq__ = lambda s, o: True\n"
            "def f(): return Near(7)",
            FunctionTest("f", (), 0.5, as_json=True),
            F,
        ),
        (
            "class Any(list):\n    __eq__ = lambda s, o: True\n    __len__ = lambda s: 1\n"
            "    __iter__ = lambda s: iter([1])\n"
            "def f(): return Any([7])",
            FunctionTest("f", (), [1], as_json=True),
            F,
        ),
        ("def f(): return {'1': 1, 1: 2}", FunctionTest("f", (), {"1": 1}, as_json=True), F),
    ],
)
def test_what_a_program_gains_by_it(sandbox: Sandbox, source: str, test: Test, outcome: Outcome) -> None:
    assert judge(sandbox, source, test).outcomes == (outcome,)


def test_a_prelude_that_fails_is_no_fault_of_the_program(sandbox: Sandbox) -> None:
    for prelude in ("import no_such_package\n", "1 / 0\n"):
        verdict = sandbox.submit(Program("def f(): return 1", prelude=prelude), [FunctionTest("f", (), 1)]).result()
        assert verdict.infrastructure_error is not None
        with pytest.raises(SandboxError, match=r"the prelude fails: .*(no_such_package|ZeroDivisionError)"):
            sandbox.check("python", (), prelude)
    sandbox.check("python", (), PRELUDE)
    with pytest.raises(InvalidTestError, match="the prelude isn't Python"):
        sandbox.check("python", (), "import (")
    with pytest.raises(InvalidTestError, match="takes no prelude"):
        sandbox.check("c", (), PRELUDE)


def test_a_slot_loads_common_modules_only() -> None:
    assert modules_of("import random, os, antigravity\nfrom heapq import *\nfrom .x import y\nimport nope.random") == (
        "heapq",
        "random",
    )
    assert {"statistics", "json", "datetime"} <= set(modules_of(LIVECODEBENCH))
    assert "fractions" in modules_of(APPS)


ROWS: list[dict[str, Any]] = [
    {
        "question_id": "pairs",
        "question_content": "Return the smallest and the largest number of nums.",
        "starter_code": "class Solution:\n    def ends(self, nums: List[int]) -> List[int]:\n        ",
        "public_test_cases": '[{"input": "[3, 1, 2]", "output": "[1, 3]", "testtype": "functional"}]',
        "private_test_cases": '[{"input": "[5]", "output": "[5, 5]", "testtype": "functional"}]',
        "metadata": '{"func_name": "ends"}',
    },
    {
        "problem_id": 1,
        "question": "Return the running means of a list of numbers.",
        "starter_code": "def means(xs: Optional[List[float]]):",
        "input_output": '{"fn_name": "means", "inputs": [[[0.1, 0.2, 0.3]], [[1, 1]]], '
        '"outputs": [[[0.1, 0.15, 0.2]], [[1.0, 1.0]]]}',
    },
    {"question": "Halve.", "inputs": ["1\n", "2\n"], "outputs": ["0.5\n", "1.0\n"], "id": "half"},
]
BEGUN = "class Solution:\n    def ends(self, nums: List[int]) -> List[int]:\n        return "
MEANS = "def means(xs: Optional[List[float]]):\n    return [t / i for i, t in enumerate(accumulate(xs), 1)]\n"


def test_programs_that_begin_as_their_rows_ask_are_paid(tmp_path: Path, sandbox: Sandbox) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    pairs, means, half = load_tasks(file).tasks
    reward = CodeReward([pairs, means, half], sandbox=sandbox, limits=Limits(cpu_seconds=10, wall_seconds=20))
    paid = {
        (pairs.id, f"{BEGUN}min(nums), max(nums)"): 1.0,
        (pairs.id, f"{BEGUN}[min(nums), max(nums)]"): 1.0,
        (pairs.id, f"{BEGUN}[max(nums), min(nums)]"): 0.55,  # right for one number
        (pairs.id, f"{BEGUN}reduce(lambda a, b: a, nums)"): 0.1,
        (means.id, MEANS): 1.0,
        (means.id, MEANS.replace("enumerate(accumulate(xs), 1)", "enumerate(xs, 1)")): 0.1,
        (half.id, "print(int(stdin.readline()) / 2 + 1e-9)"): 1.0,
        (half.id, "print(int(stdin.readline()) / 2 + 1e-3)"): 0.1,
    }
    ids, completions = zip(*[(task, f"```python\n{program}\n```") for task, program in paid], strict=True)
    assert reward(completions, ids) == pytest.approx(list(paid.values()))
