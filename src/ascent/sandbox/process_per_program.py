"""A process of its own for every program, at nice 19, with limits on time, memory and output. No confinement.

The tests run in the program's process, so a program that means to can fake a pass: level `none`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from ascent.sandbox.types import FunctionTest, Level, Limits, Outcome, Program, StdioTest, Test, Verdict

_CHILD = r"""
import ast, json, os, sys
channel = os.fdopen(int(sys.argv[1]), "w", buffering=1)
def say(**fields): channel.write(json.dumps(fields) + "\n")
work = json.load(open(sys.argv[2], encoding="utf-8"))
try:
    code = compile(work["source"], "program.py", "exec")
except (SyntaxError, ValueError) as error:
    say(compiled=False, error=f"{type(error).__name__}: {error}"); sys.exit()
say(compiled=True)
space = {"__name__": "__main__"}
def attempt(index, run):
    try:
        outcome = "passed" if run() else "failed"; error = None
    except AssertionError as e: outcome, error = "failed", f"AssertionError: {e}"
    except MemoryError: outcome, error = "memory", "MemoryError"
    except BaseException as e: outcome, error = "error", f"{type(e).__name__}: {e}"
    say(index=index, outcome=outcome, error=error)
if work["stdin"] is not None:
    exec(code, space); sys.exit()
try:
    exec(code, space)
except BaseException as e:
    say(error=f"{type(e).__name__}: {e}"); sys.exit()
def same(a, b, tolerance):
    if tolerance is not None and isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= tolerance * max(1.0, abs(b))
    return type(a) is type(b) and a == b
for index, test in enumerate(work["tests"]):
    if "code" in test:
        def run():
            exec(test["setup"], space); exec(test["code"], space); return True
    else:
        def run():
            args, kwargs, expected = (ast.literal_eval(test[k]) for k in ("args", "kwargs", "expected"))
            value = space[test["function"]](*args, **kwargs)
            if test["unordered"]: value, expected = sorted(value, key=repr), sorted(expected, key=repr)
            return same(value, expected, test["tolerance"])
    attempt(index, run)
"""


class Sandbox:
    """Runs programs in a pool of threads, one process each. `level` is what it confines to: nothing."""

    level: Level = "none"

    def __init__(self, slots: int | None = None, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._pool = ThreadPoolExecutor(slots or max(1, (os.cpu_count() or 1) // 2), thread_name_prefix="sandbox")

    def submit(self, program: Program, tests: Sequence[Test], limits: Limits | None = None) -> Future[Verdict]:
        """Judge a program; the future gives its Verdict."""
        return self._pool.submit(_judge, program, tuple(tests), limits or self._limits)

    def run_many(self, work: Iterable[tuple[Program, Sequence[Test]]]) -> list[Verdict]:
        """Judge many programs; verdicts in the order given."""
        return [future.result() for future in [self.submit(program, tests) for program, tests in work]]

    def close(self) -> None:
        """Wait for what runs and stop."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _judge(program: Program, tests: tuple[Test, ...], limits: Limits) -> Verdict:
    started = time.monotonic()
    if program.language != "python":
        reason = f"no support for {program.language} in this version"
        return Verdict(False, (Outcome.NOT_RUN,) * len(tests), 0.0, infrastructure_error=reason)
    stdio = [test for test in tests if isinstance(test, StdioTest)]
    outcomes: list[Outcome] = []
    compiled, error, output = False, None, ""
    runs: list[tuple[list[Test], str | None]] = [([test], test.stdin) for test in stdio]
    others: list[Test] = [test for test in tests if not isinstance(test, StdioTest)]
    if others or not stdio:
        runs.append((others, None))
    results: dict[int, Outcome] = {}
    for batch, stdin in runs:
        compiled, found, text, failure = _run(program.source, batch, stdin, limits)
        output, error = output or text, error or failure
        results.update({id(test): outcome for test, outcome in zip(batch, found, strict=True)})
    outcomes = [results[id(test)] for test in tests]
    return Verdict(compiled, tuple(outcomes), time.monotonic() - started, 0.0, output[:2000], error)


def _run(
    source: str, tests: list[Test], stdin: str | None, limits: Limits
) -> tuple[bool, list[Outcome], str, str | None]:
    """One process: whether the source compiled, an outcome a test, an excerpt of its output, the first error."""

    def confine() -> None:
        os.setsid()
        os.nice(19)
        cpu = int(limits.cpu_seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryDirectory(prefix="ascent-") as folder:
        work = os.path.join(folder, "work.json")
        with open(work, "w", encoding="utf-8") as file:
            json.dump({"source": source, "stdin": stdin, "tests": [_plain(t) for t in tests if stdin is None]}, file)
        reading, writing = os.pipe()
        with open(os.path.join(folder, "out"), "w+b") as out, open(reading, encoding="utf-8") as channel:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _CHILD, str(writing), work],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                preexec_fn=confine,
                cwd=folder,
                env={"PATH": os.defpath},
            )
            os.close(writing)
            late = False
            try:
                process.communicate((stdin or "").encode(), timeout=limits.wall_seconds)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            lines = [json.loads(line) for line in channel.read().splitlines()]
            out.seek(0)
            text = out.read(limits.output_bytes).decode(errors="replace")
    late = late or process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    compiled = any(line.get("compiled") for line in lines)
    failure = next((line["error"] for line in lines if line.get("error")), None)
    if stdin is not None:
        expected = tests[0]
        assert isinstance(expected, StdioTest)
        right = process.returncode == 0 and text.split() == expected.stdout.split()
        outcome = Outcome.PASSED if right else Outcome.TIMEOUT if late else Outcome.FAILED
        return compiled, [outcome], text, failure
    ended = Outcome.TIMEOUT if late else Outcome.ERROR
    found = {line["index"]: Outcome(line["outcome"]) for line in lines if "index" in line}
    return compiled, [found.get(index, ended) for index in range(len(tests))], text, failure


def _plain(test: Test) -> dict[str, object]:
    if isinstance(test, FunctionTest):
        return {
            "function": test.function,
            "args": repr(test.args),
            "kwargs": repr(test.kwargs),
            "expected": repr(test.expected),
            "tolerance": test.tolerance,
            "unordered": test.unordered,
        }
    assert not isinstance(test, StdioTest)
    return {"code": test.code, "setup": test.setup}
