"""Programs in completions, as models write them."""

from __future__ import annotations

import pytest

from ascent.rewards.extract import extract_program

ADD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        pytest.param(ADD, ADD, id="raw"),
        pytest.param(f"```python\n{ADD}```", ADD, id="fence"),
        pytest.param(f"Sure! Here it is:\n\n```python\n{ADD}```\n\nIt adds two numbers.", ADD, id="chat"),
        pytest.param(f"```\n{ADD}```", ADD, id="no-language"),
        pytest.param(f"```python\n{ADD}", ADD, id="unclosed"),
        pytest.param(f"~~~py\n{ADD}~~~", ADD, id="tildes"),
        pytest.param(f"````python\n{ADD}````", ADD, id="four-ticks"),
        pytest.param(f"```text\nnotes\n```\n```python\n{ADD}```", ADD, id="other-language-first"),
        pytest.param(f"```python\n{ADD}```\n```python\nprint(add(1, 2))\n```", ADD, id="usage-after-answer"),
        pytest.param("```python\nx = 1\n```\n```python\nx = 2\n```", "x = 2\n", id="last-of-several"),
        pytest.param("    def add(a, b):\n        return a + b\n", ADD, id="indented"),
        pytest.param(f"Here is the code:\n{ADD}\nHope this helps!", ADD, id="chat-around-raw"),
        pytest.param(
            "1. First:\n   ```python\n   def add(a, b):\n       return a + b\n   ```", ADD, id="fence-in-list"
        ),
        pytest.param("I can't do that.", "I can't do that.\n", id="no-code"),
        pytest.param("", "", id="empty"),
        pytest.param("   \n\n", "", id="blank"),
        pytest.param("```python\n```", "```python\n```\n", id="empty-fence"),
    ],
)
def test_finds_the_program(completion: str, expected: str) -> None:
    assert extract_program(completion, entry_point="add") == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        pytest.param("\n    return a + b\n", ADD, id="body"),
        pytest.param("\n    return a + b\n\nprint(add(1, 2))\nmore text", f"{ADD}", id="text-after"),
        pytest.param(f"```python\n{ADD}```", ADD, id="whole-program-in-fence"),
        pytest.param("```python\nreturn a + b\n```", ADD, id="body-in-fence"),
        pytest.param(
            "\n    return a + b\n\ndef helper():\n    pass\n", f"{ADD}\ndef helper():\n    pass\n", id="helper"
        ),
    ],
)
def test_continues_a_function_s_head(completion: str, expected: str) -> None:
    assert extract_program(completion, prefix="def add(a, b):", entry_point="add") == expected


HEAD = 'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef area(r):\n    """Of a circle."""'


def test_a_docstring_s_function_goes_on() -> None:
    assert extract_program("\n    return math.pi * r * r", prefix=HEAD, entry_point="area").startswith(HEAD)
    program = extract_program("```python\nreturn half(r)\n```", prefix=HEAD, entry_point="area")
    assert program == HEAD + "\n    return half(r)\n"


def test_a_whole_function_takes_the_head_s_place_but_not_the_imports() -> None:
    whole = "def area(r):\n    return half(math.pi)\n"
    expected = HEAD[: HEAD.index("def area")].rstrip() + "\n\n\n" + whole
    assert extract_program(f"```python\n{whole}```", prefix=HEAD, entry_point="area") == expected
    above = HEAD[: HEAD.index("def area")]
    assert extract_program(f"```python\n{whole}```", prefix=above, entry_point="area") == expected
    assert extract_program(whole, prefix=above, entry_point="area") == expected
    assert extract_program("", prefix=above, entry_point="area") == ""


def test_a_base_model_writes_on_after_its_answer() -> None:
    completion = f"\n{ADD}```\n\nNext task:\n```python\ndef add(a, b):\n    return a - b\n```"
    assert extract_program(completion, entry_point="add", in_fence=True) == ADD


def test_a_prompt_that_opened_the_fence() -> None:
    assert extract_program(f"\n{ADD}```\nDone.", entry_point="add", in_fence=True) == ADD
    assert extract_program(f"\n{ADD}", entry_point="add", in_fence=True) == ADD


def test_other_languages() -> None:
    c = "int main(void) { return 0; }\n"
    assert extract_program(f"```c\n{c}```", language="c") == c
    assert extract_program(f"```python\nx\n```\n```c++\n{c}```", language="cpp") == c


def test_long_hostile_text_is_quick() -> None:
    for text in ("```" * 50_000, "`" * 200_000, "def " * 50_000, "(" * 100_000, "\n" * 200_000, "~~~\n```\n" * 20_000):
        extract_program(text, entry_point="add")
