"""What looks like an error, in whatever layer's form, and what shows that a run did its work."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascent.environment import faults, signs

ERRORS = [
    "[ERROR] RUNTIME(12,python):2026-01-01-10:00:00 [x.cc:1] rtFoo failed",
    "[ERROR] ATB(9) something",
    "ERROR:    Application cannot start",
    "FATAL: the thing broke",
    "2026-01-01 10:00:00 - ERROR - trainer - lost it",
    "[rank0]:[E1212 12:10:10.131512730 foo.cpp:1] [Rank 0] bad",
    "srun: error: n1: task 3: Exited with exit code 7",
    "slurmstepd: error: something",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "Process exited with code 3",
    "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 2.",
    "Worker 3 died",
    "Segmentation fault (core dumped)",
    "double free or corruption (out)",
    "terminate called after throwing an instance of 'std::runtime_error'",
    'INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 500 Internal Server Error',
    "mylib.FrobnicationError: no frobs left",
    "EK0042: [PID: 3] unheard of",
    "训练失败：",
    "foo.bar.FrobInvalid: the third column is a string",
    "some.wire.rpc.CallExceeded: 30 s are over",
    "trainer: AssertionError: 4 frobs for 2 heads",
    "RuntimeError: mesh failed with [../third_party/pair.cc:7] no error",
    "drvErr=12, drvRetCode=12",
    "NVRM: Xid (PCI:0000:01:00): 31, pid=9",
    "fixp_error0 info: 0x1, fixp_error1 info: 0x2, fsmId:0",
]
NONE = [
    "INFO 01-01 10:00:00 [a.py:1] retrying after an error",
    "0 errors, 0 failures",
    "error_rate: 0.0",
    "WARNING 01-01 10:00:00 [a.py:1] ImportError: optional",
    "[W socket.cpp:697] [c10d] The client socket has failed to connect (errno: 97)",
    "/x/y.py:3: UserWarning: RuntimeError is not raised any more",
    "Connection refused, retrying in 2 seconds",
    "Process exited with code 0",
    "export LOG_LEVEL=ERROR",
    "--on-error continue",
    "my.pkg.Loader: 3 files",
    "checked 12 files, no errors",
]
WORK = [
    "{'train_runtime': 812.1, 'train_loss': 0.3}",
    "INFO:     Application startup complete.",
    'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    "Saving model checkpoint to /out/checkpoint-100",
    "command exited: 0",
    " 45%|####5     | 120/266 [10:00<12:00,  4.9s/it]\n 46%|####5     | 121/266 [10:05<11:55,  4.9s/it]",
    "step:34 - actor/entropy:0.2 - critic/score/mean:0.4",
    "12 passed in 3.1s",
    "{'loss': 0.1, 'reward': 0.4, 'reward_std': 0.2}\n 41%|####      | 82/200 [11:12:13<16:00:00, 500s/it]",
    "Final validation metrics: {'val/reward/mean@1': 0.4}",
]


@pytest.mark.parametrize("line", ERRORS)
def test_line_looks_like_an_error(line: str) -> None:
    assert signs.is_error(line)
    assert faults.diagnose_text(f"a line before\n{line}\n").verdict in ("fault", "unknown")


@pytest.mark.parametrize("line", NONE)
def test_line_does_not_look_like_an_error(line: str) -> None:
    assert not signs.is_error(line)
    assert faults.diagnose_text(f"a line before\n{line}\n").verdict in ("unjudged", "healthy")


@pytest.mark.parametrize("line", ERRORS)
def test_no_all_clear_for_an_error_after_work(line: str) -> None:
    text = "\n".join([*WORK, line]) + "\n"
    assert faults.diagnose_text(text).verdict in ("fault", "unknown")


@pytest.mark.parametrize("lines", WORK)
def test_work_makes_a_log_healthy(lines: str) -> None:
    reading = faults.diagnose_text(f"some words\n{lines}\n")
    assert reading.verdict == "healthy"
    assert reading.shown_by is not None


def test_traceback_that_python_ignores_is_none() -> None:
    log = (
        "{'train_runtime': 812.1}\nException ignored in: <function Pool.__del__ at 0x1>\n"
        'Traceback (most recent call last):\n  File "x.py", line 1, in __del__\nImportError: sys.meta_path is None\n'
    )
    assert faults.diagnose_text(log).verdict == "healthy"


def test_what_was_coped_with_is_a_note_only_where_the_work_was_done_after_it() -> None:
    missing = "cat: /etc/hccn.conf: No such file or directory\n"
    assert faults.diagnose_text(missing).verdict == "fault"
    assert faults.diagnose_text("{'train_runtime': 1.0}\n" + missing).verdict == "fault"
    reading = faults.diagnose_text(missing + "{'train_runtime': 1.0}\n")
    assert reading.verdict == "healthy"
    assert [(each.fault, each.level) for each in reading.diagnoses] == [("file-missing", "note")]


def test_service_that_ends_regularly_after_its_engine_died_is_no_all_clear() -> None:
    log = (
        "ERROR 10-09 07:09:37 [async_llm.py:724] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered\n"
        "INFO:     Application shutdown complete.\nINFO:     Finished server process [651]\n"
    )
    primary = faults.diagnose_text(log).primary
    assert primary is not None
    assert primary.fault == "engine-dead"


@pytest.mark.slow
@pytest.mark.parametrize("package", ["vllm", "trl", "accelerate", "transformers"])
def test_what_packages_log_at_mild_levels_raises_no_alarm(package: str) -> None:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} isn't installed")
    messages = [message for file in Path(found.origin).parent.rglob("*.py") for message in _mild_messages(file)]
    assert len(messages) > 20
    alarming = []
    for level, message in messages:
        for form in ("(EngineCore pid=3) {} 01-01 10:00:00 [a.py:12] {}", "2026-01-01 10:00:00 - {} - mod - {}"):
            reading = faults.diagnose_text(form.format(level, message) + "\n")
            if reading.verdict in ("fault", "unknown"):
                alarming.append((reading.primary.fault if reading.primary else "unknown", message))
    assert len(alarming) <= len(messages) // 200, alarming


def _mild_messages(file: Path) -> Iterator[tuple[str, str]]:
    """Level and text of the literal messages that a file logs as information or warning."""
    for node in ast.walk(ast.parse(file.read_text("utf-8", errors="replace"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            level = {"info": "INFO", "warning": "WARNING", "warning_once": "WARNING"}.get(node.func.attr)
            text = node.args[0]
            if level and isinstance(text, ast.Constant) and isinstance(text.value, str) and len(text.value) > 15:
                yield level, " ".join(text.value.replace("%s", "7").replace("%d", "7").split())
