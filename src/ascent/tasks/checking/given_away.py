"""What a prompt says that only the judge should know: hidden tests, or the solution."""

from __future__ import annotations

import ast
import re

from ascent.sandbox.types import StdioTest, Test
from ascent.tasks.checking.cases import UNKNOWN, Case, cases
from ascent.tasks.checking.findings import Finding
from ascent.tasks.checking.mutants import parsed
from ascent.types import Task

_TELLING = 8  # characters: a shorter value stands in many prompts by chance
_FEW = 0.5  # the share of hidden tests in the prompt from which on it is more than an example


def prompt_text(task: Task) -> str:
    """The task's own prompt, before anything is added to it."""
    if isinstance(task.prompt, str):
        return task.prompt
    return "\n".join(str(message["content"]) for message in task.prompt)


def given_away(task: Task) -> list[Finding]:
    """Findings on the prompt: hidden tests whose call, or whose input and result, stand in it; the solution."""
    text = _dense(prompt_text(task))
    shown = [test for test in task.hidden_tests if _stands_in(test, task, text)]
    found = []
    if shown:
        share = len(shown) / len(task.hidden_tests)
        kind = "tests-in-prompt" if share >= _FEW else "some-tests-in-prompt"
        found.append(
            Finding(
                task.id,
                kind,
                f"{len(shown)} of {len(task.hidden_tests)} hidden tests stand in the prompt",
                "make them visible tests, and add hidden ones with other inputs",
                tuple(_as_text(test, task) for test in shown[:3]),
            )
        )
    if _solution_in(task, text):
        found.append(Finding(task.id, "solution-in-prompt", "the prompt holds the reference", "take it out"))
    return found


def repeated_tests(task: Task) -> list[Finding]:
    """A finding where every hidden test is also a visible one, or there is none."""
    if not task.hidden_tests:
        what = f"all {len(task.visible_tests)} tests are visible: a program that knows their answers passes"
        return [Finding(task.id, "no-hidden-tests", what, "move some tests to hidden_tests, or add hidden ones")]
    again = [test for test in task.hidden_tests if test in task.visible_tests]
    if len(again) < len(task.hidden_tests):
        return []
    what = f"all {len(again)} hidden tests are visible ones too"
    return [Finding(task.id, "hidden-repeats-visible", what, "add hidden tests with other inputs")]


def _stands_in(test: Test, task: Task, text: str) -> bool:
    if isinstance(test, StdioTest):
        asked, answer = _dense(test.stdin), _dense(test.stdout)
        return len(asked) >= _TELLING and asked in text and answer in text
    return any(_is_shown(case, text) for case in cases([test], task.entry_point))


def _is_shown(case: Case, text: str) -> bool:
    """The call itself, or arguments that nobody writes by chance together with their result."""
    asked = _dense(case.asked)
    function = case.function.rpartition(".")[2]
    if f"{function}({asked})" in text:
        return True
    if case.expected is UNKNOWN or len(asked) < _TELLING:
        return False
    return asked in text and _dense(repr(case.expected)) in text


def _dense(text: str) -> str:
    """Without white space, and with one kind of quotes."""
    return re.sub(r"\s+", "", text).replace('"', "'")


def _as_text(test: Test, task: Task) -> str:
    if isinstance(test, StdioTest):
        return f"{test.stdin!r:.80} -> {test.stdout!r:.80}"
    return "; ".join(
        f"{case.function}({case.asked}) == {case.expected!r}"[:160] for case in cases([test], task.entry_point)
    )


def _solution_in(task: Task, text: str) -> bool:
    """Whether the body of the reference's function stands in the prompt."""
    tree = parsed(task.reference or "")
    if tree is None or task.entry_point is None:
        return False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == task.entry_point:
            has_docstring = ast.get_docstring(node) is not None
            body = "\n".join(ast.unparse(each) for each in node.body[has_docstring:])
            return len(_dense(body)) >= 2 * _TELLING and _dense(body) in text
    return False
