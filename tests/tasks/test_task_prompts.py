"""What the policy reads, as plain text and as chat."""

from __future__ import annotations

import pytest

from ascent.sandbox.types import AssertTest, FunctionTest, StdioTest, Test
from ascent.tasks.prompts import (
    LONGEST_SHOWN_TEST,
    ends_in_fence,
    is_completion_task,
    shown_test,
    with_prompt,
)
from ascent.types import Task

HEAD = 'import math\n\ndef half(x):\n    return x / 2\n\ndef f(x):\n    """Twice x."""'
HIDDEN = (FunctionTest("f", (41,), 82),)
COMPLETION = Task("c", HEAD + "\n", (FunctionTest("f", (2,), 4),), HIDDEN, entry_point="f", prefix=HEAD + "\n")
STATEMENT = Task("s", "Double a number.\n", (AssertTest("assert f(2) == 4"),), HIDDEN, entry_point="f")
MESSAGES = Task("m", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi. "}), (), HIDDEN)
STDIO = Task("i", "Add 1.", (StdioTest("1\n", "2\n"), StdioTest("2\n", "3\n")), (), language="cpp")
ALL = (COMPLETION, STATEMENT, MESSAGES, STDIO)


def content(task: Task) -> str:
    asked = with_prompt(task, chat=True).prompt
    assert not isinstance(asked, str)
    return asked[-1]["content"]


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.id)
@pytest.mark.parametrize("chat", [False, True])
def test_hidden_tests_are_never_shown(task: Task, chat: bool) -> None:
    assert "82" not in str(with_prompt(task, chat=chat).prompt)


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.id)
def test_text_never_ends_in_white_space(task: Task) -> None:
    text = with_prompt(task, chat=False).prompt
    assert isinstance(text, str)
    assert text == text.rstrip()


def test_completion_as_text_is_the_head_itself() -> None:
    asked = with_prompt(COMPLETION, chat=False)
    assert asked.prompt == asked.prefix == HEAD
    assert not ends_in_fence(HEAD)
    names: dict[str, object] = {}
    exec(asked.prefix + "\n    return 2 * x\n", names)  # noqa: S102
    assert names["f"](2) == 4  # type: ignore[operator]


def test_completion_in_chat_asks_for_the_whole_program() -> None:
    asked = with_prompt(COMPLETION, chat=True)
    assert HEAD in content(COMPLETION)
    assert "assert f(2) == 4" in content(COMPLETION)
    assert asked.prefix == "import math\n\ndef half(x):\n    return x / 2\n\n"
    names: dict[str, object] = {}
    exec(asked.prefix + "def f(x):\n    return 4 * half(x)\n", names)  # noqa: S102
    assert names["f"](2) == 4  # type: ignore[operator]


def test_statement_as_text_opens_a_fence() -> None:
    text = with_prompt(STATEMENT, chat=False).prompt
    assert isinstance(text, str)
    assert text.startswith("Double a number.\n\nThe function is called `f`.")
    assert "assert f(2) == 4" in text
    assert ends_in_fence(text)
    assert text.count("```") % 2 == 1


def test_statement_in_chat_closes_every_fence() -> None:
    body, answer = content(STATEMENT).rsplit("\n\n", 1)
    assert body.count("```") % 2 == 0
    assert answer == "Answer with the whole Python program in one ```python block."


def test_function_named_in_the_statement_is_not_named_again() -> None:
    assert "is called" not in content(Task("s", "Write f(x).", (), HIDDEN, entry_point="f"))


def test_given_messages_are_kept() -> None:
    assert with_prompt(MESSAGES, chat=True) is MESSAGES
    assert with_prompt(MESSAGES, chat=False).prompt == "Be brief.\n\nHi."


def test_stdio_examples_and_language() -> None:
    text = content(STDIO)
    assert "Input:\n1\nOutput:\n2\n\nInput:\n2\nOutput:\n3" in text
    assert text.endswith("C++ program in one ```cpp block.")


def test_prefix_without_the_prompt_stays() -> None:
    task = Task("p", "Write f.", (), HIDDEN, prefix="import math\n")
    assert not is_completion_task(task)
    assert {with_prompt(task, chat=chat).prefix for chat in (True, False)} == {"import math\n"}


def test_long_test_is_not_shown() -> None:
    long = FunctionTest("f", ("y" * LONGEST_SHOWN_TEST,), 1)
    assert "yyy" not in content(Task("l", "Write f.", (long,), HIDDEN))


def test_shared_setup_is_shown_once() -> None:
    tests = tuple(AssertTest(f"assert f({n}) == math.pi", "import math") for n in (1, 2))
    text = content(Task("m", "Write f.", tests, HIDDEN))
    assert text.count("import math") == 1
    assert "import math\nassert f(1) == math.pi\nassert f(2) == math.pi" in text


@pytest.mark.parametrize(
    ("test", "text"),
    [
        (FunctionTest("f", ("a",), [1], {"k": 2}), "assert f('a', k=2) == [1]"),
        (FunctionTest("Solution.f", ([1],), 2), "assert Solution().f([1]) == 2"),
        (AssertTest("assert f()", "import math"), "import math\nassert f()"),
        (StdioTest("1\n", "2\n"), "Input:\n1\nOutput:\n2"),
    ],
)
def test_shown_test(test: Test, text: str) -> None:
    assert shown_test(test) == text
