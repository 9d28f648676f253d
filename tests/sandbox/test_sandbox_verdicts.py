"""What the sandbox says of honest and of faulty programs, by every kind of test."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascent.sandbox import (
    AssertTest,
    FunctionTest,
    Language,
    Limits,
    Outcome,
    Program,
    Sandbox,
    SandboxClosedError,
    SandboxError,
    StdioTest,
    Test,
    Verdict,
    pool,
)
from ascent.sandbox.attack import processes_below
from ascent.sandbox.errors import SlotError

pytestmark = pytest.mark.timeout(1800)
P, F, E, T, N = Outcome.PASSED, Outcome.FAILED, Outcome.ERROR, Outcome.TIMEOUT, Outcome.NOT_RUN


def judge(sandbox: Sandbox, source: str, *tests: Test, limits: Limits | None = None) -> Verdict:
    verdict = sandbox.submit(Program(source), tests, limits).result()
    assert verdict.infrastructure_error is None
    return verdict


def returned(sandbox: Sandbox, expression: str, expected: Any, **options: Any) -> Outcome:
    """The outcome for a function that returns `expression`."""
    source = f"def f():\n    return {expression}\n"
    return judge(sandbox, source, FunctionTest("f", (), expected, **options)).outcomes[0]


@pytest.mark.parametrize(
    ("expression", "expected", "outcome"),
    [
        ("4", 4, P),
        ("4.0", 4, F),
        ("True", 1, F),
        ("1", True, F),
        ("(1, 2)", [1, 2], F),
        ("[1, 2]", [1, 2], P),
        ("[2, 1]", [1, 2], F),
        ("'a'", b"a", F),
        ("b'a\\xff'", b"a\xff", P),
        ("{1, 2, 3}", {3, 2, 1}, P),
        ("{1: [2, (3,)]}", {1: [2, (3,)]}, P),
        ("{1: 2}", {1.0: 2}, F),
        ("{(1, 2)}", {(2, 1)}, F),
        ("float('nan')", math.nan, P),
        ("[float('nan')]", [math.nan], P),
        ("float('inf')", math.inf, P),
        ("-0.0", 0.0, P),
        ("2 ** 3000", 2**3000, P),
        ("1 + 2j", 1 + 2j, P),
        ("None", None, P),
        ("'\\ud800'", "\ud800", P),
        ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}, P),
        ("__import__('collections').OrderedDict(a=1)", {"a": 1}, P),
        ("__import__('collections').namedtuple('T', 'a b')(1, 2)", (1, 2), P),
        ("__import__('enum').IntEnum('E', 'A B').B", 2, P),
        ("frozenset([1])", {1}, F),
        ("range(3)", [0, 1, 2], F),
        ("object()", None, F),
    ],
)
def test_returned_values_are_compared_with_exact_types(
    sandbox: Sandbox, expression: str, expected: Any, outcome: Outcome
) -> None:
    assert returned(sandbox, expression, expected) is outcome


def test_tolerance_order_and_mutation_hold_only_where_the_test_says_so(sandbox: Sandbox) -> None:
    assert returned(sandbox, "1.0000001", 1.0) is F
    assert returned(sandbox, "1.0000001", 1.0, tolerance=1e-6) is P
    assert returned(sandbox, "1", 1.0, tolerance=1e-6) is P
    assert returned(sandbox, "True", 1.0, tolerance=1e-6) is F
    assert returned(sandbox, "1e308", math.inf, tolerance=1e-6) is F
    assert returned(sandbox, "[3, 1, 2, 1]", [1, 1, 2, 3]) is F
    assert returned(sandbox, "[3, 1, 2, 1]", [1, 1, 2, 3], unordered=True) is P
    assert returned(sandbox, "[3, 1, 2, 3]", [1, 1, 2, 3], unordered=True) is F
    assert returned(sandbox, "[0.1 + 0.2, 1.0]", [1.0, 0.3], unordered=True, tolerance=1e-9) is P
    source = "def f(xs, n):\n    xs.sort()\n"
    assert judge(sandbox, source, FunctionTest("f", ([2, 1], 3), None, mutated=([1, 2], 3))).all_passed
    assert judge(sandbox, source, FunctionTest("f", ([2, 1], 3), None, mutated=([2, 1], 3))).outcomes == (F,)


def test_each_test_has_its_own_outcome(sandbox: Sandbox) -> None:
    source = "import os\ndef f(n):\n    if n == 2: raise ValueError('two')\n    if n == 3: os._exit(0)\n    return n\n"
    tests = [FunctionTest("f", (n,), n) for n in range(6)] + [
        FunctionTest("g", (), 1),
        FunctionTest("f", (7,), 8),
    ]
    verdict = judge(sandbox, source, *tests)
    assert verdict.outcomes == (P, P, E, E, P, P, E, F)
    assert verdict.error == "ValueError: two"
    assert verdict.fraction == 0.5


def test_a_program_has_one_budget_and_a_test_may_have_its_own(sandbox: Sandbox) -> None:
    source = "def f(n):\n    while n == 1: pass\n    return n\n"
    tests = [FunctionTest("f", (n,), n) for n in range(3)]
    assert judge(sandbox, source, *tests, limits=Limits(cpu_seconds=0.3)).outcomes == (P, T, N)
    each = Limits(per_test_seconds=0.3)
    assert judge(sandbox, source, *tests, limits=each).outcomes == (P, T, P)
    stdio = "n = int(input())\nwhile n == 1: pass\nprint(n)"
    shown = [StdioTest(f"{n}\n", f"{n}\n") for n in range(3)]
    assert judge(sandbox, stdio, *shown, limits=each).outcomes == (P, T, P)


def test_stopping_at_the_first_failure(sandbox: Sandbox) -> None:
    tests = [FunctionTest("f", (1,), 1), FunctionTest("f", (2,), 1), FunctionTest("f", (3,), 3)]
    stop = Limits(stop_at_first_failure=True)
    assert judge(sandbox, "def f(n): return n", *tests, limits=stop).outcomes == (P, F, N)
    shown = [StdioTest("", "1"), StdioTest("", "2"), StdioTest("", "1")]
    assert judge(sandbox, "print(1)", *shown, limits=stop).outcomes == (P, F, N)


def test_one_process_for_all_tests_or_one_for_each(sandbox: Sandbox) -> None:
    source = "seen = []\ndef f(n):\n    seen.append(n)\n    return len(seen)\n"
    tests = [FunctionTest("f", (0,), 1), FunctionTest("f", (0,), 1)]
    assert judge(sandbox, source, *tests).outcomes == (P, F)
    assert judge(sandbox, source, *tests, limits=Limits(isolate_tests=True)).outcomes == (P, P)


def test_methods_keyword_arguments_and_recursion(sandbox: Sandbox) -> None:
    source = (
        "class Solution:\n    def add(self, a, b=0): return a + b\n"
        "def deep(n):\n    import sys\n    sys.setrecursionlimit(20000)\n    return n if n == 0 else deep(n - 1)\n"
    )
    tests = [FunctionTest("Solution.add", (1,), 3, kwargs={"b": 2}), FunctionTest("deep", (10000,), 0)]
    assert judge(sandbox, source, *tests).all_passed


@pytest.mark.parametrize(
    ("source", "stdin", "stdout"),
    [
        ("import sys\ndef main():\n    print(2 * int(input()))\n    sys.exit()\nmain()", "3", "6"),
        ("if __name__ == '__main__':\n    import sys\n    print(len(sys.stdin.read().split()))", "1 2\n3", "3"),
        ("print(sum(map(int, open(0).read().split())))", "1 2", "3"),
        ("import sys\nprint(sum(map(int, sys.stdin.buffer.readline().split())))", "1 2\n9", "3"),
        ("import sys\nprint(sum(int(line) for line in sys.stdin))", "1\n2\n", "3"),
        ("import fileinput\nprint(sum(int(line) for line in fileinput.input()))", "1\n2\n", "3"),
        ("print(open('/dev/stdin').read().strip())", "x", "x"),
        ("import os\nprint(os.read(0, 100).decode())", "x", "x"),
        ("import sys, io\nf = io.BufferedReader(io.FileIO(0))\nprint(f.read().decode())", "x", "x"),
        ("n = int(input())\ntry:\n    input()\nexcept EOFError:\n    print(n)", "5\n", "5"),
        ("import threading\nt = threading.Thread(target=lambda: print(1))\nt.start()", "", "1"),
        ("import sys, threading\nsys.setrecursionlimit(200000)\nthreading.stack_size(64 << 20)\n"
         "def f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
         "t = threading.Thread(target=lambda: print(f(100000)))\nt.start(); t.join()", "", "100000"),
        ("import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print(1)\nasyncio.run(main())", "", "1"),
        ("import concurrent.futures as c\nwith c.ThreadPoolExecutor(8) as t:\n    print(*t.map(int, '12'))", "", "1 2"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(1))", "", "A(x=1)"),
        ("import atexit\natexit.register(print, 'end')\nprint('start')", "", "start\nend"),
        ("import tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(b'1')\n    print(f.tell())", "", "1"),
        ("open('x', 'w').write('1')\nprint(open('x').read())", "", "1"),
        ("import os, sys\nprint(1)\nsys.stdout.flush()\nos._exit(0)", "", "1"),
        ("print('x' * 500000)", "", "x" * 500000),
        ("print(0.1 + 0.2)", "", "0.3"),
        ("print('1.50 2')", "", "1.5 2"),
        ("print('a  \\n\\n')", "", "a"),
        ("quit()", "", ""),
        ("import decimal, fractions, random, datetime, statistics, hashlib, json, sqlite3\nprint(1)", "", "1"),
        ("import zoneinfo\nprint(zoneinfo.ZoneInfo('UTC'))", "", "UTC"),
    ],
)  # fmt: skip
def test_honest_scripts_pass(sandbox: Sandbox, source: str, stdin: str, stdout: str) -> None:
    verdict = judge(sandbox, source, StdioTest(stdin, stdout))
    assert verdict.outcomes == (P,), (verdict.error, verdict.output[:300])


@pytest.mark.parametrize(
    ("source", "outcome", "words"),
    [
        ("print(1)\nimport sys\nsys.exit(1)", E, "code 1"),
        ("print(1)\n1 / 0", E, "ZeroDivisionError"),
        ("print(1)\nprint(2)", F, "wrong output"),
        ("print(10)", F, "wrong output"),
        ("print('1.0000001')", F, "wrong output"),
        ("print(1\n", E, "SyntaxError"),
        ("import sys\nsys.exit('sorry')", E, "sorry"),
        ("x = b'x' * (1 << 34)", Outcome.MEMORY, "MemoryError"),
        ("import socket\nsocket.socket()", Outcome.FORBIDDEN, "PermissionError"),
        ("import subprocess\nsubprocess.run(['ls'])", Outcome.FORBIDDEN, "PermissionError"),
        ("while True: print('x' * 10000)", F, "printed more than"),
        ("import time\ntime.sleep(60)", T, "more than 1.0 s"),
    ],
)
def test_faulty_scripts_get_the_outcome_that_says_why(
    sandbox: Sandbox, source: str, outcome: Outcome, words: str
) -> None:
    verdict = judge(sandbox, source, StdioTest("", "1"), limits=Limits(wall_seconds=1.0, cpu_seconds=0.5))
    assert verdict.outcomes == (outcome,)
    assert words in str(verdict.error)


TESTER = [
    ("for n in range(5):\n    assert f(n) == 2 * n", P),
    ("assert f(2) == 4 and f(3) == 6", P),
    ("assert f(2) == 4 and f(3) == 7", F),
    ("import math\nassert math.isclose(f(0.5), 1.0)", P),
    ("xs = [3, 1]\nin_place(xs)\nassert xs == [1, 3]", P),
    ("assert apply(lambda x: x + 1, 2) == 3", P),
    ("p = Point(1, 2)\nassert p.x == 1 and p.total() == 3\np.x = 5\nassert p.total() == 7", P),
    ("assert Point(1, 2) == Point(1, 2)", P),
    ("assert Point(1, 2) == 3", F),
    ("assert list(squares(4)) == [0, 1, 4, 9]", P),
    ("assert sum(squares(3)) == 5", P),
    (
        "try:\n    fails()\nexcept KeyError as error:\n    assert 'gone' in str(error)\nelse:\n    assert False",
        P,
    ),
    ("try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False", F),
    ("assert CONSTANT == {'a': [1, 2]}", P),
    ("assert isinstance(f(2), int) and not isinstance(f(2), str)", P),
    ("assert f.__name__ == 'f'", P),
    ("assert missing(1) == 1", E),
    ("import sys\nsys.exit(0)", E),
    ("raise KeyError", E),
]
TESTED = """
from dataclasses import dataclass
CONSTANT = {'a': [1, 2]}
def f(n): return 2 * n
def in_place(xs): xs.sort()
def apply(g, x): return g(x)
def fails(): raise KeyError('gone')
def squares(n):
    for i in range(n):
        yield i * i
@dataclass
class Point:
    x: int
    y: int
    def total(self): return self.x + self.y
"""


def test_test_code_runs_beside_the_program_and_not_in_it(sandbox: Sandbox) -> None:
    verdict = judge(sandbox, TESTED, *[AssertTest(code) for code, _ in TESTER])
    assert verdict.outcomes == tuple(outcome for _, outcome in TESTER), verdict.error


def test_an_end_of_the_program_is_no_pass_even_for_tests_that_catch_everything(sandbox: Sandbox) -> None:
    source = "import os\ndef f(n):\n    os._exit(0)\n"
    test = AssertTest("for _ in range(2):\n    try:\n        f(1)\n    except BaseException:\n        pass")
    assert judge(sandbox, source, test).outcomes == (E,)


def test_tests_in_the_programs_own_process_are_refused_unless_allowed(sandbox: Sandbox) -> None:
    test = AssertTest(
        "import inspect\nassert 'def f' in inspect.getsource(f) or True\nassert f(1) == 1", in_process=True
    )
    with pytest.raises(SandboxError, match="allow_in_process"):
        sandbox.submit(Program("def f(n): return n"), [test])
    with Sandbox(slots=1, allow_in_process=True, nice=0) as open_to_it:
        assert judge(
            open_to_it, "import inspect\ninspect.getsource = lambda f: 'def f'\ndef f(n): return n", test
        ).all_passed


def test_compile_only(sandbox: Sandbox) -> None:
    valid, invalid = judge(sandbox, "def f(): pass\n1 / 0"), judge(sandbox, "def f(:")
    assert (valid.compiled, valid.outcomes, valid.error) == (True, (), None)
    assert not invalid.compiled
    assert "SyntaxError" in str(invalid.error)


@pytest.mark.parametrize("value", [object(), [object()], {1: len}, lambda: 0])
def test_tests_with_values_that_are_not_data_are_refused(sandbox: Sandbox, value: object) -> None:
    with pytest.raises(SandboxError, match="plain data"):
        sandbox.submit(Program(""), [FunctionTest("f", (), value)])


def test_wrong_requests_are_refused_with_the_place() -> None:
    with pytest.raises(SandboxError, match="expected at least 1"):
        Sandbox(slots=0)
    with pytest.raises(SandboxError, match="expected one of none"):
        Sandbox(require="strong")  # type: ignore[arg-type]
    with pytest.raises(SandboxError, match="isn't installed"):
        Sandbox(packages=("no_such_package",))


def test_a_test_that_is_no_python_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="test 1: its code isn't Python"):
        sandbox.submit(Program(""), [AssertTest("assert f(1)"), AssertTest("assert (")])


SOURCES: dict[Language, str] = {
    "c": '#include <stdio.h>\nint main(void) { int n; if (scanf("%d", &n) != 1) return 1; printf("%d\\n", 2 * n); }',
    "cpp": "#include <iostream>\n#include <vector>\n"
    "int main() { int n; if (!(std::cin >> n)) return 1; std::vector<int> v(n, 2);\n"
    " int s = 0; for (int x : v) s += x; std::cout << s << std::endl; }",
    "rust": "use std::io;\nfn main() { let mut s = String::new(); io::stdin().read_line(&mut s).unwrap();\n"
    ' let n: i64 = s.trim().parse().unwrap(); println!("{}", 2 * n); }',
}
COMPILERS: dict[Language, str] = {"c": "gcc", "cpp": "g++", "rust": "rustc"}


@pytest.mark.parametrize("language", SOURCES)
def test_compiled_languages(sandbox: Sandbox, language: Language) -> None:
    if shutil.which(COMPILERS[language]) is None:
        pytest.skip(f"{COMPILERS[language]} isn't installed")
    program = Program(SOURCES[language], language)
    tests = [StdioTest("3", "6"), StdioTest("3", "7"), StdioTest("x", "6")]
    assert sandbox.submit(program, tests).result().outcomes == (P, F, E)
    assert sandbox.submit(program, []).result().compiled
    broken = sandbox.submit(Program(SOURCES[language] + "}", language), tests).result()
    assert not broken.compiled
    assert broken.outcomes == (E, E, E)
    assert "error" in str(broken.error)
    with pytest.raises(SandboxError, match="takes stdio tests"):
        sandbox.submit(program, [FunctionTest("f", (), 1)])


def test_a_missing_compiler_says_what_to_install(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.sandbox import compilers

    compilers._gnu.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda *args, **options: None)
    with pytest.raises(SandboxError, match="compiler not found: gcc; install gcc"):
        sandbox.submit(Program("", "c"), [])
    compilers._gnu.cache_clear()


def test_packages_can_be_allowed() -> None:
    pytest.importorskip("numpy")
    source = "import numpy as np\ndef f(n): return int(np.arange(n).sum())\ndef g(n): return np.int64(n)\n"
    tests = [FunctionTest("f", (4,), 6), FunctionTest("g", (4,), 4)]
    with Sandbox(slots=1, limits=Limits(memory_bytes=2 << 30), packages=("numpy",), nice=0) as with_numpy:
        assert judge(with_numpy, source, *tests).all_passed


def test_without_packages_there_are_none(sandbox: Sandbox) -> None:
    assert judge(sandbox, "import numpy\ndef f(): return 1", FunctionTest("f", (), 1)).outcomes == (E,)


def test_verdicts_come_as_they_finish_and_queues_are_counted() -> None:
    slow = Program("import time\ndef f(n):\n    time.sleep(1.5)\n    return n")
    fast = Program("def f(n): return n")
    tests = [FunctionTest("f", (1,), 1)]

    async def places(two: Sandbox) -> list[int]:
        jobs = [(slow, tests), (fast, tests), (fast, tests)]
        return [place async for place, verdict in two.as_finished(jobs) if verdict.all_passed]

    with Sandbox(slots=2, nice=0) as two:
        assert asyncio.run(places(two))[-1] == 0
        verdicts = two.run_many([(fast, tests)] * 40)
        stats = two.stats
    assert all(verdict.all_passed for verdict in verdicts)
    assert (stats.slots, stats.finished, stats.queued, stats.running) == (2, 43, 0, 0)
    assert stats.exposed_seconds > 1.4
    assert stats.most_queued > 1


@pytest.mark.parametrize(("cores", "slots"), [(5, 2), (4, 2), (1, 1)])
def test_the_default_is_half_of_this_processs_cores_at_nice_19(
    cores: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "cores_of_this_process", lambda: cores)
    others = processes_below(os.getpid())
    with Sandbox() as default:
        assert default.slots == slots
        below = [Path(f"/proc/{pid}/stat").read_text() for pid in processes_below(os.getpid()) - others]
        assert {int(stat.rsplit(")", 1)[1].split()[16]) for stat in below} == {19}


def test_a_closed_sandbox_says_so() -> None:
    sleeper = Program("import time\ntime.sleep(60)")
    with Sandbox(slots=1, nice=0) as one:
        running = one.submit(sleeper, [StdioTest("", "")])
        waiting = one.submit(sleeper, [StdioTest("", "")])
        while not running.running():
            pass
    with pytest.raises(SandboxClosedError):
        one.submit(sleeper, [])
    with pytest.raises(SandboxClosedError):
        running.result(timeout=60)
    assert waiting.cancelled()


@pytest.mark.parametrize(("free", "charged"), [(1 << 40, True), (1 << 20, False)])
def test_a_full_disk_is_no_fault_of_a_programs(free: int, charged: bool) -> None:
    """A compiler's "No space left on device" counts only where there is room: it may be the program's own words."""
    from ascent.sandbox import compiling, slot

    words = b'main.c:1:2: error: #error "No space left on device"'

    class FullSlot:
        def run(self, job: object, parts: object) -> slot.Ending:
            return slot.Ending(1, None, None, 0.1, 0, 0.1, began=True, answered=0, err=words)

        def free_bytes(self) -> int:
            return free

    toolchain: Any = SimpleNamespace(grants=(), build=("gcc",))
    fake: Any = FullSlot()
    entry = compiling.CompiledProgram("program")
    if charged:
        compiling.compile_program(fake, toolchain, b"", entry, compiling.COMPILE_LIMITS)
        assert entry.error == words.decode()
        return
    with pytest.raises(SlotError, match="gcc found no room: 1 MiB are free"):
        compiling.compile_program(fake, toolchain, b"", entry, compiling.COMPILE_LIMITS)
    assert not entry.made, "it is compiled again when there is room"
