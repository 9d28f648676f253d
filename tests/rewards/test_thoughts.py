"""What reasoning models think is no answer, and what they answer isn't taken for thought."""

from __future__ import annotations

import time

import pytest

from ascent.rewards.extract import extract_program
from ascent.rewards.thoughts import opens_thought, without_thoughts

PROGRAM = "def f():\n    return 1\n"
ANSWER = f"```python\n{PROGRAM}```"
DRAFT = "```python\ndef f():\n    return 0\n```"
READS_MARKS = 'def f(s="<think>a</think>b"):\n    return s.replace("<think>", "").split(\'</think>\')[-1]\n'
IN_DOCSTRING = 'def f(s):\n    """Drop the text up to\n    </think>\n    and\n    <think>\n    too."""\n    return 1\n'


@pytest.mark.parametrize(
    "completion",
    [
        pytest.param(f"<think>\n{DRAFT}\nBetter:\n</think>\n\n{ANSWER}", id="closed"),
        pytest.param(f"<think>\n\n</think>\n\n{ANSWER}", id="empty"),
        pytest.param(f"<think>\n{DRAFT}\n</think>\n\n{PROGRAM}", id="raw-answer"),
        pytest.param(f"<think>{DRAFT}</think>{ANSWER}", id="glued"),
        pytest.param(f"Okay.\n{DRAFT}\nNo.\n</think>\n{ANSWER}", id="opened-by-the-prompt"),
        pytest.param(f"<think>one</think>\n<think>\n{DRAFT}\n</think>\n{ANSWER}", id="several"),
        pytest.param(f"<think>\na\n<think>\nb\n</think>\n{DRAFT}\n</think>\n{ANSWER}", id="nested"),
        pytest.param(f"<think>\nI close with </think> then.\n{DRAFT}\n</think>\n{ANSWER}", id="spoken-of"),
        pytest.param(f"<think>\n```python\ndef f():\n    return 0\n</think>\n{ANSWER}", id="draft-left-open"),
        pytest.param(f"```python\ndef f():\n    return 0\n</think>\n{ANSWER}", id="draft-left-open-by-the-prompt"),
        pytest.param(f"<think>\n```python\n# </think>\n```\n{DRAFT}\n</think>\n{ANSWER}", id="mark-in-a-draft"),
        pytest.param(f"<think>\n```\nx = 0\n</think>\n```\n{PROGRAM}```", id="fences-that-only-fit-across"),
        pytest.param(f"<think>That's it, let's go.</think>Here's the program:\n{ANSWER}", id="apostrophes"),
        pytest.param(f"{ANSWER}\n<think>\nWas that right?\n{DRAFT}", id="thinks-again-after-its-answer"),
        pytest.param(f"<think>a</think>\n{ANSWER}\n</think>", id="closed-once-too-often"),
        pytest.param(f"I needn't <think> about this.\n{ANSWER}", id="spoken-of-in-prose"),
        pytest.param(f"Without `<think>` tags.\n{ANSWER}", id="spoken-of-in-backticks"),
        *(
            pytest.param(f"{opening}\n{DRAFT}\n{closing}\n{ANSWER}", id=opening)
            for opening, closing in (
                ("<thinking>", "</thinking>"),
                ("<THINK>", "</Think>"),
                ("<thought>", "</thought>"),
                ("<reasoning>", "</reasoning>"),
                ("<seed:think>", "</seed:think>"),
                ("[THINK]", "[/THINK]"),
                ("<|begin_of_thought|>", "<|end_of_thought|>"),
            )
        ),
        pytest.param(f"<think>\nabout <reasoning> and\n</reasoning>\n{DRAFT}\n</think>\n{ANSWER}", id="other-marks"),
    ],
)
def test_the_program_is_the_answer_s(completion: str) -> None:
    assert extract_program(completion, entry_point="f") == PROGRAM


@pytest.mark.parametrize(
    ("completion", "opened"),
    [
        (f"<think>\n{DRAFT}\nWait, ", False),
        (f"\n<reasoning>\n{PROGRAM}", False),
        (f"Let me see.\n{DRAFT}\nWait, ", True),
        (f"{DRAFT}\n</think>", True),
        (f"{DRAFT}\n</think>\n", False),
        (f"<think>\na</think>\n<think>\n{DRAFT}", False),
        ("", True),
    ],
)
def test_a_thought_that_goes_on_to_the_end_holds_no_program(completion: str, opened: bool) -> None:
    assert extract_program(completion, entry_point="f", in_thought=opened) == ""
    assert extract_program(completion, prefix='def f():\n    """Doc."""', entry_point="f", in_thought=opened) == ""


@pytest.mark.parametrize("program", [READS_MARKS, IN_DOCSTRING])
def test_marks_in_a_program_are_code(program: str) -> None:
    assert extract_program(f"```python\n{program}```", entry_point="f") == program
    assert extract_program(f"<think>\n{DRAFT}\n</think>\n```python\n{program}```", entry_point="f") == program
    assert extract_program(READS_MARKS, entry_point="f") == READS_MARKS


def test_a_prompt_that_opens_a_thought() -> None:
    assert opens_thought("<|im_start|>assistant\n<think>\n")
    assert opens_thought("<\uff5cAssistant\uff5c><think>")
    assert not opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_thought("<|im_start|>assistant\n")
    assert without_thoughts("a</think>b", opened=True) == "b"
    assert without_thoughts("a <b> c") == "a <b> c"


def test_long_hostile_text_is_quick() -> None:
    hostile = (
        "<think>\n",
        "<think></think>\n",
        "</think>",
        "'<think>",
        "```\n<think>\n",
        "```py\n</think>\n",
        "<think>`",
    )
    started = time.process_time()
    for text in hostile:
        without_thoughts(text * (200_000 // len(text)))
    without_thoughts("'" + "<think>" * 200_000)
    assert time.process_time() - started < 20
