"""Public formats, recognised by their keys. Rows here are ours, written in the shape of the public sets."""

from __future__ import annotations

import base64
import builtins
import io
import json
import pickle
import pickletools
import re
import sys
import warnings
import zlib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ascent.sandbox import Program, Sandbox
from ascent.sandbox.types import AssertTest, FunctionTest, StdioTest
from ascent.tasks.formats import task_from_any_row
from ascent.tasks.loading import load_tasks
from ascent.tasks.preludes import APPS, LIVECODEBENCH, unknown_names
from ascent.tasks.rows import RowError
from ascent.types import Task

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="public task sets are not here")


def read(row: Any, visible: int = 1) -> Task:
    return task_from_any_row(row, "set", visible)


def failures(task: Task, program: str) -> list[str]:
    """The codes of the assert tests that the program fails (our own programs, so plain exec)."""
    failed = []
    for test in task.tests:
        assert isinstance(test, AssertTest)
        names: dict[str, Any] = {"__name__": "program"}
        try:
            with redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the sets' own doubtful escape sequences
                exec(program, names)  # noqa: S102
                exec(test.setup, names)  # noqa: S102
                exec(test.code, names)  # noqa: S102
        except Exception as error:  # noqa: BLE001 - any failure of the program counts
            failed.append(f"{test.code}: {error!r}")
    return failed


HUMANEVAL = {
    "task_id": "Set/0",
    "prompt": 'import math\n\ndef twice(x):\n    """Twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert True\n    assert candidate(2) == 4, 'two'\n"
    "    assert candidate(math.inf) == math.inf\n",
    "entry_point": "twice",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function that doubles.",
    "code": "def helper(x):\r\n    return x\r\n\r\ndef twice(x):\r\n    return 2 * helper(x)",
    "test_list": ["assert twice(1) == 2", "assert twice(2) == 4", "assert set([twice(3)]) == {6}"],
    "test_setup_code": "",
    "challenge_test_list": ["assert twice(-1) == -2"],
}


def test_humaneval_row() -> None:
    task = read(HUMANEVAL)
    assert (task.id, task.entry_point, task.family) == ("Set/0", "twice", "humaneval")
    assert task.prompt == task.prefix == 'import math\n\ndef twice(x):\n    """Twice x."""'
    assert task.visible_tests == ()
    assert len(task.hidden_tests) == 2  # one an assert; `assert True` says nothing
    assert task.reference is not None
    assert failures(task, task.reference) == []
    assert len(failures(task, task.prefix + "\n    return x")) == 1


def test_humaneval_check_with_a_loop_stays_whole() -> None:
    check = "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == 2 * i\n"
    task = read(HUMANEVAL | {"test": check})
    assert len(task.hidden_tests) == 1
    assert failures(task, str(task.reference)) == []
    assert len(failures(task, task.prefix + "\n    return x")) == 1


def test_mbpp_full_row() -> None:
    task = read(MBPP)
    assert (task.id, task.entry_point, task.prompt) == ("set/7", "twice", "Write a function that doubles.")
    assert task.visible_tests == (AssertTest("assert twice(1) == 2"),)
    assert len(task.hidden_tests) == 3
    assert "\r" not in str(task.reference)
    assert failures(task, str(task.reference)) == []


def test_mbpp_sanitized_row() -> None:
    row = {key: MBPP[key] for key in ("task_id", "test_list", "code")}
    task = read(row | {"prompt": "Double it.", "test_imports": ["import math"], "source_file": "x"})
    assert task.prompt == "Double it."
    assert {test.setup for test in task.tests if isinstance(test, AssertTest)} == {"import math"}


@pytest.mark.parametrize(("visible", "shown"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_visible_asserts_can_be_chosen(visible: int, shown: int) -> None:
    assert len(read(MBPP, visible).visible_tests) == shown


def test_one_test_always_stays_hidden() -> None:
    task = read({"text": "t", "test_list": ["assert f(1) == 2"]})
    assert (len(task.visible_tests), len(task.hidden_tests), task.entry_point) == (0, 1, "f")


IO = {"inputs": ["1\n", ["2", "3"]], "outputs": ["1\n", "5\n"]}


def test_apps_stdio_row() -> None:
    row = {
        "problem_id": 12,
        "question": "Add.",
        "input_output": json.dumps(IO),
        "solutions": json.dumps(["print(1)"]),
        "difficulty": "introductory",
        "starter_code": "",
    }
    task = read(row)
    assert (task.id, task.family, task.entry_point, task.reference) == (
        "set/12",
        "introductory",
        None,
        "print(1)",
    )
    assert task.tests == (StdioTest("1\n", "1\n"), StdioTest("2\n3\n", "5\n"))
    assert len(task.visible_tests) == 1
    assert "standard input" in str(task.prompt)
    assert read(row | {"input_output": IO}).tests == task.tests


def test_function_call_rows() -> None:
    calls = {"fn_name": "f", "inputs": [[1, [2]], ["a", None]], "outputs": [3, [1, 2]]}
    task = read({"description": "Do.", **calls})
    assert task.tests == (
        FunctionTest("f", (1, [2]), 3, as_json=True),
        FunctionTest("f", ("a", None), [1, 2], as_json=True),
    )
    assert read({"question": "Do.", "input_output": json.dumps(calls)}).tests == task.tests
    assert task.id == read(dict(reversed({"description": "Do.", **calls}.items()))).id  # independent of key order


def test_outputs_that_are_all_wrapped_are_unwrapped() -> None:
    wrapped = read({"question": "Do.", "fn_name": "f", "inputs": [[1], [2]], "outputs": [[2], [[4]]]})
    assert [test.expected for test in wrapped.tests if isinstance(test, FunctionTest)] == [2, [4]]
    assert all(test.or_in_list for test in wrapped.tests if isinstance(test, FunctionTest)), "it can't be known"


def test_keys_that_json_could_not_write_as_integers() -> None:
    row = {"question": "Do.", "fn_name": "f", "inputs": [[{"1": 2}], [{"a": 2}]], "outputs": [{"1": 3}, {}]}
    assert [test.args for test in read(row).tests if isinstance(test, FunctionTest)] == [({1: 2},), ({"a": 2},)]


def test_method_of_solution() -> None:
    starter = "class Solution:\n    def twice(self, x):\n        "
    row = {
        "question": "Do.",
        "starter_code": starter,
        "fn_name": "twice",
        "inputs": [[1], [2]],
        "outputs": [2, 4],
    }
    task = read(row)
    assert task.tests == (
        FunctionTest("Solution.twice", (1,), 2, as_json=True),
        FunctionTest("Solution.twice", (2,), 4, as_json=True),
    )
    assert task.prelude == APPS
    assert "class Solution" in str(task.prompt)


def livecodebench(private: Any, **changes: Any) -> dict[str, Any]:
    public = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]
    return {
        "question_id": "q1",
        "question_content": "Sum.",
        "starter_code": "class Solution:\n    def total(self, xs, y):\n        ",
        "public_test_cases": json.dumps(public),
        "private_test_cases": private,
        "metadata": json.dumps({"func_name": "total"}),
    } | changes


def test_livecodebench_functional_row() -> None:
    private = json.dumps([{"input": "[]\n0", "output": "0", "testtype": "functional"}])
    task = read(livecodebench(private))
    assert (task.id, task.entry_point) == ("q1", "total")
    assert task.visible_tests == (FunctionTest("Solution.total", ([1, 2], 3), 6, as_json=True),)
    assert task.hidden_tests == (FunctionTest("Solution.total", ([], 0), 0, as_json=True),)
    assert task.prelude == LIVECODEBENCH
    exact = task_from_any_row(livecodebench(private), "set", 1, strict=True)
    assert [test.tolerance for test in exact.tests if isinstance(test, FunctionTest)] == [0.0, 0.0]


def test_livecodebench_stdin_row() -> None:
    case = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
    task = read(livecodebench(case, public_test_cases=case, starter_code="", metadata="{}"))
    assert task.tests == (StdioTest("1\n", "2\n"), StdioTest("1\n", "2\n"))
    strict = task_from_any_row(
        livecodebench(case, starter_code="", metadata="{}", public_test_cases=case), "s", 1, strict=True
    )
    assert strict.tests == (StdioTest("1\n", "2\n", tolerance=0.0),) * 2


def test_strict_leaves_a_checker_that_allows_for_rounding() -> None:
    task = task_from_any_row({"question": "Halve.", **IO}, "set", 1, strict=True)
    assert [test.tolerance for test in task.tests if isinstance(test, StdioTest)] == [None, None]


LEETCODE = {
    "task_id": "least",
    "prompt": "from typing import *\nfrom math import *\ninf = float('inf')\n\n"
    "def list_node(values):\n    return values\n",
    "entry_point": "Solution().least",
    "test": "def check(candidate):\n    assert candidate(xs = [3, 1]) == 1\n    assert candidate(xs = []) == inf\n"
    "    assert candidate(xs = [2, 5]) == 2\n",
    "completion": "class Solution:\n    def least(self, xs: List[int]) -> int:\n        return min(xs, default=inf)\n",
    "problem_description": "Return the least of xs.",
    "starter_code": "class Solution:\n    def least(self, xs: List[int]) -> int:\n        ",
    "difficulty": "Easy",
}


def test_leetcode_row() -> None:
    task = read(LEETCODE)
    assert (task.id, task.entry_point, task.family) == ("least", "least", "Easy")
    assert "Return the least of xs.\n\nBegin with this code:" in str(task.prompt)
    assert task.visible_tests == (FunctionTest("Solution.least", (), 1, {"xs": [3, 1]}, as_json=True),)
    other, second = task.hidden_tests
    assert isinstance(other, AssertTest), "inf stands for a value that the prelude makes"
    assert second == FunctionTest("Solution.least", (), 2, {"xs": [2, 5]}, as_json=True)
    assert task.prelude.startswith("from typing import *\nfrom math import *\n")
    with Sandbox(slots=1) as sandbox:
        reference = sandbox.submit(Program(str(task.reference), prelude=task.prelude), task.tests).result()
        assert reference.all_passed, reference.error
        overriding = f"inf = 0\n{task.reference}".replace("default=inf", "default=0")
        assert sandbox.submit(Program(overriding, prelude=task.prelude), task.tests).result().passed == 2
    query = read(
        {key: LEETCODE[key] for key in ("task_id", "prompt", "entry_point", "test")} | {"meta": {"query": "Q?"}}
    )
    assert query.prompt == "Q?"


def test_leetcode_row_whose_tests_need_objects() -> None:
    test = "def check(candidate):\n    assert candidate(head = list_node([1])) == 1\n"
    with pytest.raises(RowError, match="linked lists or trees with list_node"):
        read(LEETCODE | {"test": test})


def test_mbpp_programs_have_the_imports_of_their_tests() -> None:
    setup = "import math\nfrom typing import List\nsecret = 3"
    assert read(MBPP | {"test_setup_code": setup}).prelude == "import math\nfrom typing import List\n"
    assert read(MBPP).prelude == ""


@pytest.mark.parametrize(
    ("starter", "unknown"),
    [
        ("class Solution:\n    def f(self, x: List[int], n: 'TreeNode') -> Optional[Dict[str, int]]:\n        ", []),
        ("class Node:\n    pass\n\ndef f(x: Node) -> Node:", []),
        ("from x import Y as Z\nimport a.b\ndef f(x: Z, *y: a.b, **z: int):", []),
        ("def f(x: Deque[int], d: Counter):\n    ", []),
        ("def f(x: ListNode, y: Tree[Leaf]) -> None:", ["Leaf", "ListNode", "Tree"]),
        ("this is no Python: TreeNode", []),
        ("", []),
    ],
)
def test_names_that_starter_code_counts_on(starter: str, unknown: list[str]) -> None:
    for prelude in (APPS, LIVECODEBENCH):
        assert unknown_names(starter, prelude) == unknown


@pytest.mark.parametrize("prelude", [APPS, LIVECODEBENCH])
def test_preludes_leave_the_builtins_as_they_are(prelude: str) -> None:
    names: dict[str, Any] = {"__name__": "solution"}
    limit = sys.getrecursionlimit()
    try:
        exec(prelude, names)  # noqa: S102
    finally:
        sys.setrecursionlimit(limit)
    assert {"List", "Optional", "Dict", "Counter", "defaultdict", "heappush", "gcd", "math", "accumulate"} <= set(names)
    shadowed = {name for name, value in vars(builtins).items() if names.get(name, value) is not value}
    assert not {name for name in shadowed if not name.startswith("__")}


class Trap:
    """Unpickling this would set the mark."""

    sprung = False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return setattr, (Trap, "sprung", True)


def test_pickled_private_tests_are_never_loaded() -> None:
    pickled = pickle.dumps(Trap())
    assert "REDUCE" in {opcode.name for opcode, _, _ in pickletools.genops(pickled)}  # the trap is armed
    packed = base64.b64encode(zlib.compress(pickled)).decode()
    with pytest.raises(RowError, match="pickle, which is never loaded"):
        read(livecodebench(packed))
    assert not Trap.sprung


BAD: dict[str, tuple[Any, str]] = {
    "no object": (["prompt"], "a row must be an object, not a list"),
    "unknown": ({"instruction": "x"}, r"unknown format with the keys 'instruction'; expected .*HumanEval"),
    "empty object": ({}, "with the keys none"),
    "humaneval without check": (HUMANEVAL | {"test": "x = 1"}, "does not define check"),
    "humaneval broken test": (HUMANEVAL | {"test": "def check(:"}, "'test' is not valid Python"),
    "humaneval number": (HUMANEVAL | {"prompt": 3}, "'prompt' must be a string"),
    "mbpp no test": (MBPP | {"test_list": [], "challenge_test_list": []}, "'test_list' is empty"),
    "mbpp tests are text": (MBPP | {"test_list": "assert f()"}, "'test_list' must be a list"),
    "mbpp broken test": (MBPP | {"test_list": ["assert f(", "assert f()"]}, "a test is not valid Python"),
    "mbpp no statement": ({"test_list": ["assert f()"]}, "none of the keys 'text', 'prompt'"),
    "io counts": ({"question": "x", "inputs": ["1"], "outputs": []}, "1 'inputs' but 0 'outputs'"),
    "io empty": ({"question": "x", "inputs": [], "outputs": []}, "the row has no test"),
    "io no name": ({"question": "x", "inputs": [[1]], "outputs": ["2"]}, "needs 'fn_name'"),
    "io no arguments": (
        {"question": "x", "fn_name": "f", "inputs": [1], "outputs": [2]},
        "list of f's arguments",
    ),
    "io no text": ({"inputs": ["1"], "outputs": ["2"]}, "none of the keys 'question'"),
    "apps empty": ({"question": "x", "input_output": ""}, "'input_output' is empty"),
    "apps broken": ({"question": "x", "input_output": "{"}, "'input_output' is not valid JSON"),
    "apps nan": ({"question": "x", "input_output": '{"inputs": [NaN]}'}, "NaN is no JSON"),
    "apps list": ({"question": "x", "input_output": "[]"}, "'input_output' must be an object"),
    "lcb no name": (livecodebench("[]", metadata="{}"), r"public_test_cases\[0\].*func_name"),
    "lcb broken line": (
        livecodebench([{"input": "[1", "output": "1", "testtype": "functional"}]),
        r"private_test_cases\[0\]: a line of 'input' is not valid JSON",
    ),
    "starter code of trees": (
        livecodebench(
            "[]", starter_code="class Solution:\n    def total(self, r: Optional[TreeNode]) -> int:\n        "
        ),
        "'starter_code' names TreeNode, which neither it nor its harness defines",
    ),
    "function name with code": (
        {"question": "x", "fn_name": "f(); g", "inputs": [[1]], "outputs": [2]},
        "must be an identifier",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_unusable_row_says_why(name: str) -> None:
    row, reason = BAD[name]
    with pytest.raises(RowError, match=reason):
        read(row)


@needs_shared
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 600)])
def test_every_public_row_loads(name: str, count: int) -> None:
    loaded = load_tasks(SHARED / f"{name}.jsonl")
    assert len(loaded.tasks) == count
    assert loaded.rejected == ()
    assert all(task.entry_point for task in loaded.tasks)
    assert all(task.hidden_tests for task in loaded.tasks)


@needs_shared
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_public_references_pass_their_tests(name: str) -> None:
    tasks = load_tasks(SHARED / f"{name}.jsonl").tasks
    for task in tasks[:: len(tasks) // 50]:
        assert failures(task, str(task.reference)) == [], task.id


def documented_rows() -> list[dict[str, Any]]:
    """The example rows of docs/tasks.md: the fenced ones and those in the table of public formats."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    fenced = re.findall(r"```json\n(.*?)\n```", text, re.DOTALL)
    in_table = re.findall(r'\| `(\{"(?:task_id|problem_id|question|question_id)".*\})` \|$', text, re.MULTILINE)
    return [json.loads(row.replace('"[...]"', '"[]"')) for row in fenced + in_table]


def test_documented_rows_are_read() -> None:
    rows = documented_rows()
    assert len(rows) == 9
    assert all(read(row).tests for row in rows)
