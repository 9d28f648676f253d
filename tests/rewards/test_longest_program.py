"""The longest program at the beginning of a text: the same as by leaving out a line at a time, in a few attempts."""

from __future__ import annotations

import ast
import json
import random
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.growth import growth

from ascent.rewards import longest_program as module
from ascent.rewards.extract import extract_program
from ascent.rewards.longest_program import longest_program

TALK = "This adds both numbers.\n\n1. It isn't slow (is it?)\n# Note that:\nthe total is right\n"
ADD = "def add(a, b):\n    return a + b\n"
SOURCES = [Path(str(each.__file__)).read_text(encoding="utf-8") for each in (textwrap, json, module)]


def by_leaving_out_lines(text: str) -> str:
    lines = text.split("\n")
    for end in range(len(lines), 0, -1):
        try:
            ast.parse("\n".join(lines[:end]))
            return "\n".join(lines[:end])
        except (SyntaxError, ValueError):
            pass
    return ""


def meaning(program: str) -> str:
    """Without the comments and empty lines at its end."""
    lines = program.rstrip().split("\n")
    while lines and lines[-1].lstrip()[:1] in {"", "#"}:
        lines.pop()
    return "\n".join(lines)


def test_programs_that_are_cut_off_anywhere() -> None:
    draw = random.Random(0)
    for source in SOURCES:
        for _ in range(60):
            text = source[: draw.randrange(len(source))]
            if draw.random() < 0.5:
                text += draw.choice(["\n", "", "\n    "]) + TALK
            assert meaning(longest_program(text)) == meaning(by_leaving_out_lines(text)), text


@pytest.mark.parametrize(
    "text",
    [
        "",
        TALK,
        ADD + TALK,
        ADD + "try:\n    add(1, 2)\n    for x in (1,\n" + TALK,
        ADD + "if add:\n    try:\n        try:\n            pass\n        finally:\n            pass\n        a = 1\n",
        "class A:\n    def f(self):\n        for x in y:\n            while x:\n                if x:",
        ADD + '"""\nan open string\n' + ADD,
        ADD + "x = 1  # note:\n" + TALK,
        "x = a \\\n# not a comment of its own\n" + TALK,
        ADD + "\0\n" + ADD,
        ADD + "\ud800\n" + ADD,
        ADD.replace("\n", "\r\n") + TALK,
        ADD.replace("\n", "\r") + "\n" + TALK,
        "def f():\n    '''of what?\n    # '''\n    return 1\nand so on\n",
        "@a\n@b\n@c\n",
    ],
)
def test_the_same_as_by_leaving_out_lines(text: str) -> None:
    assert meaning(longest_program(text)) == meaning(by_leaving_out_lines(text))


def parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many characters are parsed while the program is found."""
    characters: list[int] = []
    original: Any = ast.parse

    def parse(source: str) -> Any:
        characters.append(len(source))
        return original(source)

    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", parse)
        extract_program(text)
    return sum(characters)


@pytest.mark.parametrize(
    ("program", "rest"),
    [
        pytest.param(ADD, TALK, id="prose"),
        pytest.param(ADD + "try:\n", "    add(1, 2)\n", id="unfinished-try"),
        pytest.param(ADD + "def f():\n", "    # a comment\n\n", id="comments"),
        pytest.param(ADD + "x = [\n", "    1,\n", id="unclosed"),
        pytest.param(ADD + 's = """\n', "text\n", id="unclosed-string"),
        pytest.param(ADD + "def f():\n    return 1\n    and so\n", ADD, id="wrong-in-the-middle"),
    ],
)
def test_the_text_is_parsed_two_or_three_times(program: str, rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = program + rest * (30_000 // len(rest))
    assert parsed(text, monkeypatch) < 4 * len(text)
    assert extract_program(text).startswith(ADD)


@pytest.mark.parametrize(
    "hostile",
    ["@a\n", "if x:\n    pass\ntry:\n    pass\n", "x = '''\n'''\n'''\n", "f(\n", "a\rb c\n", "-", "(", "\\\n"],
)
def test_what_no_few_attempts_mend_is_given_up(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ADD + hostile * (30_000 // len(hostile))
    assert parsed(text, monkeypatch) < 6 * len(text) + 200_000


def test_prose_is_not_walked_over_line_by_line() -> None:
    """Steps for a further character, of which a line has 60."""
    line = "I think that it is right to add both numbers, as was asked.\n"
    for text in ("{}", "<think>\n{}</think>\n{}", "{}```python\n{}```\n", "<think>\n{}", "def f():\n    return 1\n{}"):

        def work(size: int, text: str = text) -> Any:
            completion = text.replace("{}", line * (size // len(line)))
            return lambda: extract_program(completion)

        assert growth(work, few=5_000).steps < 0.001, text
