"""What the sandbox is asked and what it answers. Standard library only: every other room may import this
file.

A test is one of three kinds. Values in a test are plain data (None, bool, int, float, str, and lists, tuples,
dicts and sets of these); they are never objects with behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Language = Literal["python", "c", "cpp", "rust"]
Level = Literal["none", "syscall-only", "confined", "namespaced"]
LEVELS: tuple[Level, ...] = ("none", "syscall-only", "confined", "namespaced")


@dataclass(frozen=True, slots=True)
class FunctionTest:
    """`function(*args, **kwargs)` must return `expected`.

    `function` may be `Class.method`: a method of a new instance. `tolerance` is the relative and absolute
    tolerance for floats (None: exact). `unordered` compares lists and tuples as multisets. `mutated`, when not
    None, is what `args` must be after the call (in-place functions).

    With `as_json`, `expected` came out of JSON, which has no tuples and no exact floats: a tuple counts as a
    list, a key that isn't text as JSON would write it, a number by its value; a float may be off by 1e-6
    (relative and absolute) unless `tolerance` says otherwise, and 0 means exact. True is no number, and an
    expected integer takes that number only. `or_in_list` also takes `[expected]`.
    """

    function: str
    args: tuple[Any, ...]
    expected: Any
    kwargs: dict[str, Any] = field(default_factory=dict)
    tolerance: float | None = None
    unordered: bool = False
    mutated: tuple[Any, ...] | None = None
    as_json: bool = False
    or_in_list: bool = False
    kind: Literal["function"] = "function"


@dataclass(frozen=True, slots=True)
class StdioTest:
    """The program reads `stdin` and must print `stdout`, line by line and word by word.

    Numbers count by their value. One that is expected with a point or an exponent may be off by `tolerance`,
    relative and absolute (None: 1e-6, but whole numbers exactly; 0: exact).
    """

    stdin: str
    stdout: str
    tolerance: float | None = None
    kind: Literal["stdio"] = "stdio"


@dataclass(frozen=True, slots=True)
class AssertTest:
    """Test code that runs after the program's definitions: a statement such as `assert f(2) == 4`, or a whole
    `check(candidate)` followed by its call. `setup` runs before it (imports that the test needs).

    `in_process` runs it in the program's own process, where the program can forge its outcome: refused
    unless the sandbox was opened with `allow_in_process`.
    """

    code: str
    setup: str = ""
    kind: Literal["assert"] = "assert"
    in_process: bool = False


Test: TypeAlias = FunctionTest | StdioTest | AssertTest


@dataclass(frozen=True, slots=True)
class Program:
    """Source text written by a model. Hostile until proven otherwise.

    `prelude` is Python that the task gives its programs (imports, helpers). Its names stand beside the
    builtins: the program sees them without importing, its own names come first, and what it doesn't define
    itself is never tested.
    """

    source: str
    language: Language = "python"
    prelude: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use. Seconds, bytes and counts; times hold for the program and all its tests
    together unless `per_test_seconds` is set, which bounds each test as well. `scratch_bytes` bounds all
    files in the scratch directory together. `isolate_tests` gives each test a fresh process instead of one
    for all of them."""

    wall_seconds: float = 10.0
    cpu_seconds: float = 5.0
    per_test_seconds: float | None = None
    memory_bytes: int = 512 * 2**20
    output_bytes: int = 1 << 20
    file_bytes: int = 16 * 2**20
    processes: int = 32
    open_files: int = 64
    stop_at_first_failure: bool = False
    scratch_bytes: int = 64 * 2**20
    isolate_tests: bool = False

    def stretched(self, factor: float) -> Limits:
        """The same limits with all times multiplied by `factor`."""
        per_test = None if self.per_test_seconds is None else self.per_test_seconds * factor
        return replace(
            self,
            wall_seconds=self.wall_seconds * factor,
            cpu_seconds=self.cpu_seconds * factor,
            per_test_seconds=per_test,
        )


class Outcome(StrEnum):
    """What became of one test. Only PASSED earns anything."""

    PASSED = "passed"
    FAILED = "failed"  # a wrong value or wrong output
    ERROR = "error"  # the program raised, ended early, or does not define what the test calls
    TIMEOUT = "timeout"
    MEMORY = "memory"
    FORBIDDEN = "forbidden"  # the program tried what the confinement denies, and ended by it
    TAMPERED = "tampered"  # the program interfered with the judging
    NOT_RUN = "not_run"  # an earlier failure stopped the run


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one program: one outcome a test, in the order in which the tests were given.

    `compiled` says that the source is valid in its language. `infrastructure_error` is set when the sandbox
    itself failed: such a verdict says nothing about the program and must be masked, never scored 0. `output`
    is an excerpt of what the program printed, `error` the first error in words. `seconds` is wall time in
    the sandbox, without queueing; `cpu_seconds` and `peak_bytes` (resident memory) what the program used.
    `level` is the confinement that was active.
    """

    compiled: bool
    outcomes: tuple[Outcome, ...]
    seconds: float
    cpu_seconds: float = 0.0
    output: str = ""
    error: str | None = None
    level: Level = "none"
    infrastructure_error: str | None = None
    peak_bytes: int = 0

    @property
    def passed(self) -> int:
        """How many tests passed."""
        return sum(outcome is Outcome.PASSED for outcome in self.outcomes)

    @property
    def fraction(self) -> float:
        """Passed tests over all tests; 0.0 when there are none."""
        return self.passed / len(self.outcomes) if self.outcomes else 0.0

    @property
    def all_passed(self) -> bool:
        """True when there is at least one test and all passed."""
        return bool(self.outcomes) and self.passed == len(self.outcomes)
