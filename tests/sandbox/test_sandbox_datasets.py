"""No false verdicts on public task sets: reference solutions pass, mutants of them fail. Skipped where the
sets aren't there."""

from __future__ import annotations

import ast
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ascent.sandbox import AssertTest, Limits, Program, Sandbox, Test
from ascent.sandbox.asserts import decompose

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
LIMITS = Limits(wall_seconds=30.0, cpu_seconds=20.0)
QUICK = Limits(wall_seconds=6.0, cpu_seconds=1.5)

Row = tuple[str, Program, list[Test]]


def humaneval() -> list[Row]:
    rows = [json.loads(line) for line in (DATA / "humaneval.jsonl").read_text().splitlines()]
    return [
        (
            row["task_id"],
            Program(row["prompt"] + row["canonical_solution"]),
            [AssertTest(f"{row['test']}\ncheck({row['entry_point']})")],
        )
        for row in rows
    ]


def mbpp() -> list[Row]:
    rows = [json.loads(line) for line in (DATA / "mbpp.jsonl").read_text().splitlines()]
    return [
        (
            f"MBPP/{row['task_id']}",
            Program(row["code"].replace("\r", "")),
            [AssertTest(test, setup=row["test_setup_code"]) for test in row["test_list"]],
        )
        for row in rows
    ]


needs_data = pytest.mark.skipif(not (DATA / "mbpp.jsonl").exists(), reason="the public task sets aren't here")


def failures(sandbox: Sandbox, rows: list[Row], limits: Limits = LIMITS) -> dict[str, str]:
    verdicts = sandbox.run_many([(program, tests) for _, program, tests in rows], limits)
    return {
        name: f"{[str(outcome) for outcome in verdict.outcomes]} {verdict.error} {verdict.infrastructure_error}"
        for (name, _, _), verdict in zip(rows, verdicts, strict=True)
        if not verdict.all_passed
    }


@needs_data
@pytest.mark.timeout(1800)
def test_a_sample_of_reference_solutions_passes(sandbox: Sandbox) -> None:
    assert failures(sandbox, humaneval()[::4] + mbpp()[::6]) == {}


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_reference_solution_passes(sandbox: Sandbox) -> None:
    rows = humaneval() + mbpp()
    assert len(rows) == 764
    assert failures(sandbox, rows) == {}


@needs_data
def test_most_asserts_become_calls_with_expected_values() -> None:
    whole = [
        all(isinstance(t, AssertTest) and decompose(t.code) for t in tests) for _, _, tests in humaneval() + mbpp()
    ]
    assert sum(whole[:164]) >= 148
    assert sum(whole[164:]) >= 596


# A fixed mutator: one small change of a solution, by kind.


class _Mutator(ast.NodeTransformer):
    """Makes the change at the `wanted`-th place where one can be made."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.seen, self.kind = wanted, -1, ""

    def _here(self, kind: str) -> bool:
        self.seen += 1
        if self.seen == self.wanted:
            self.kind = kind
        return self.seen == self.wanted

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        swapped: dict[type[ast.cmpop], Callable[[], ast.cmpop]] = {
            ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
        }  # fmt: skip
        if type(node.ops[0]) in swapped and self._here("comparison"):
            node.ops[0] = swapped[type(node.ops[0])]()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        swapped: dict[type[ast.operator], Callable[[], ast.operator]] = {
            ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Mod: ast.Mult, ast.FloorDiv: ast.Mult,
        }  # fmt: skip
        if type(node.op) in swapped and self._here("operator"):
            node.op = swapped[type(node.op)]()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and self._here("number"):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and self._here("return"):
            node.value = ast.copy_location(ast.Tuple([node.value], ast.Load()), node.value)
        return node


def mutants(rows: list[Row], each: int) -> Iterator[tuple[str, Row]]:
    for name, program, tests in rows:
        places = _Mutator(-2)
        places.visit(ast.parse(program.source))
        chosen = random.Random(zlib.crc32(name.encode())).sample(range(places.seen + 1), min(each, places.seen + 1))
        for place in chosen:
            mutator = _Mutator(place)
            tree = ast.fix_missing_locations(mutator.visit(ast.parse(program.source)))
            yield mutator.kind, (f"{name} mutant {place}", Program(ast.unparse(tree)), tests)


def survival(sandbox: Sandbox, rows: list[Row], each: int) -> tuple[Counter[str], Counter[str], list[str]]:
    made = list(mutants(rows, each))
    failed = failures(sandbox, [row for _, row in made], QUICK)
    survivors = [(kind, name) for kind, (name, _, _) in made if name not in failed]
    return (
        Counter(kind for kind, _ in made),
        Counter(kind for kind, _ in survivors),
        [name for _, name in survivors],
    )


def agrees_with_plain_python(rows: list[Row]) -> bool:
    """Whether these mutants pass their own tests in plain CPython too: then they are right, or the tests are
    weak."""
    for _, program, tests in rows:
        names: dict[str, object] = {}
        exec(program.source, names)  # noqa: S102 - mutants of public reference solutions
        for test in tests:
            assert isinstance(test, AssertTest)
            exec(test.setup + "\n" + test.code, names)  # noqa: S102
    return True


@needs_data
@pytest.mark.timeout(1800)
def test_a_sample_of_mutants_fails_unless_its_tests_cant_tell(sandbox: Sandbox) -> None:
    rows = humaneval()[::8] + mbpp()[::12]
    made, survived, names = survival(sandbox, rows, 1)
    assert survived.total() < 0.25 * made.total(), (made, survived)
    chosen = {row[0]: row for _, row in mutants(rows, 1)}
    assert agrees_with_plain_python([chosen[name] for name in names])


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_mutants_of_everything(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    rows = humaneval() + mbpp()
    made, survived, names = survival(sandbox, rows, 2)
    with capsys.disabled():
        print(f"\nmutants {dict(made)}, survived {dict(survived)}")
    chosen = {row[0]: row for _, row in mutants(rows, 2)}
    assert agrees_with_plain_python([chosen[name] for name in names])
