"""An engine that is tried, in a process of its own: a crash, a hang and memory that runs out are answers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ascent import devices
from ascent.host.keeper import Keeper
from ascent.memory.cards import Card
from ascent.rollout.engine import EngineSettings
from ascent.tuning.probe import Machine, Measured, Probe, TrialError, Why, measured_from_json, probe_to_json

COMMAND = (sys.executable, "-m", "ascent.tuning.engine_child")
_KEPT_LINES = 8
_PATIENCE = 10.0  # seconds in which a child that is asked to ends


class EngineChild:
    """The process, and at most one engine in it. Nothing of it outlives this process, or the end of a `with`."""

    def __init__(
        self, log: Path, environment: Mapping[str, str] | None = None, command: Sequence[str] = COMMAND
    ) -> None:
        """Start the process; `environment` is added to this one's. What it prints is appended to `log`."""
        self._log = log
        self._log_begins = log.stat().st_size if log.exists() else 0
        self._rest = b""
        self._keeper = Keeper()
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                bufsize=0,
            )
        self._keeper.tell("+", self._process.pid)

    def look(self, seconds: float = 300.0) -> Machine:
        """What engines run on here. Raises TrialError."""
        answer = self._ask({"do": "look"}, seconds)
        return Machine(answer["kind"], answer["devices"], answer["cores"], Card(**answer["card"]))

    def open(self, settings: EngineSettings, seconds: float = 1800.0) -> float:
        """Build the engine; how many seconds that took. Raises TrialError, after which the process has ended."""
        return float(self._ask({"do": "open", "settings": asdict(settings)}, seconds)["seconds"])

    def probe(self, probe: Probe, seconds: float = 1800.0) -> Measured:
        """Measure; an answer is waited for so long. Raises TrialError, after which the process has ended."""
        return measured_from_json(self._ask(probe_to_json(probe), seconds))

    def close(self) -> None:
        """End the process, by force where it doesn't by itself. Safe to call twice."""
        if self._process.poll() is None:
            try:
                self._pipe(self._process.stdin).write(b'{"do": "end"}\n')
                self._process.wait(_PATIENCE)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                pass
        self._kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            self._send(json.dumps(request).encode() + b"\n")
            answer = self._answer(seconds)
        except BrokenPipeError:
            raise self._ended() from None
        if not answer["ok"]:
            self._kill()
            raise TrialError(answer["why"], answer["text"])
        return answer

    def _send(self, data: bytes) -> None:
        pipe = self._pipe(self._process.stdin)
        while data:
            data = data[pipe.write(data) :]

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line. Raises TrialError for a process that ends or is silent so long."""
        pipe, until = self._pipe(self._process.stdout), time.monotonic() + seconds
        while b"\n" not in self._rest:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                self._kill()
                raise TrialError("hang", f"no answer within {seconds:.0f} s{self._last_lines()}")
            read = os.read(pipe.fileno(), 1 << 16)
            if not read:
                raise self._ended()
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> TrialError:
        """What became of a process that has closed its answers."""
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        self._kill()
        said = self._last_lines()
        if code == -signal.SIGKILL:
            return TrialError("memory", f"the process was killed, as the kernel does when memory runs out{said}")
        why: Why = "memory" if devices.says_out_of_memory(said) else "crash"
        return TrialError(why, f"the process ended with {code}{said}")

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._keeper.close()
        for pipe in (self._process.stdin, self._process.stdout):
            self._pipe(pipe).close()

    def _last_lines(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_begins)
            text = log.read().decode("utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-_KEPT_LINES:]
        return "".join(f"\n  {line}" for line in lines)

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None  # both are made with the process
        return pipe
