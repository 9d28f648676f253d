"""Programs and tracebacks that the model wrote aren't the run's own errors; the run's own below them are."""

from __future__ import annotations

import pytest

from ascent.environment import faults

TRACEBACK = 'Traceback (most recent call last):\n  File "solution.py", line 3, in <module>\nMemoryError\n'
END = "{'loss': 0.1, 'reward': 0.5}\n{'loss': 0.2, 'reward': 0.6}\n"
WRITTEN = {
    "quoted, in one line": "Completion: 'raise X\\nTraceback (most recent call last):\\nKeyError: 1'\n",
    "under a heading": f"Generated text:\n{TRACEBACK}\n",
    "fenced": f"Response: ```\n{TRACEBACK}```\n",
    "thought": f"<think>\n{TRACEBACK}No space left on device\n</think>\n<answer>42</answer>\n",
    "a field of JSON": '{"prompt": "p", "completion": "OSError: [Errno 28] No space left on device"}\n',
    "stderr of a judged program": '{"verdict": "error", "stderr": "Segmentation fault (core dumped)"}\n',
    "a table": (
        "┏━━━━━━━━┳━━━━━━━━━━━━┓\n┃ Prompt ┃ Completion ┃\n┡━━━━━━━━╇━━━━━━━━━━━━┩\n"
        "│ hello  │ KeyError: 3 │\n│        │ Killed      │\n└────────┴────────────┘\n"
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_text_of_the_model_is_no_error(name: str) -> None:
    reading = faults.diagnose_text(WRITTEN[name] + END)
    assert reading.verdict == "healthy", (reading.diagnoses, reading.unexplained)


@pytest.mark.parametrize("name", WRITTEN)
def test_error_of_the_run_after_it_is_found(name: str) -> None:
    log = WRITTEN[name] + "[rank0]: OSError: [Errno 28] No space left on device: '/ckpt'\n"
    primary = faults.diagnose_text(log).primary
    assert primary is not None
    assert primary.fault == "disk-full"


@pytest.mark.parametrize("opening", ["Completion: 'never closed", "Response:", "<think>", "Output: ```python"])
def test_text_without_an_end_swallows_no_error(opening: str) -> None:
    reading = faults.diagnose_text(f"{opening}\nOSError: [Errno 28] No space left on device: '/ckpt'\n")
    assert reading.verdict == "fault"
