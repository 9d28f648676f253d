"""The seam of judging: what a run asks for verdicts. On one machine that is its `Sandbox`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Protocol, Self

from ascent.sandbox.types import Language, Level, Limits, Program, Test, Verdict


class Judges(Protocol):
    """Judges programs, several at once. May be asked by several threads."""

    @property
    def slots(self) -> int:
        """How many programs are judged at once."""
        ...

    @property
    def level(self) -> Level:
        """The weakest confinement that a program gets."""
        ...

    def submit(
        self, program: Program, tests: Sequence[Test], limits: Limits | None = None, *, later: bool = False
    ) -> Future[Verdict]:
        """Judge a program; with no tests, only whether it is valid. `later`: once no other program waits. Raises
        InvalidTestError and SandboxClosedError at once."""
        ...

    def check(self, language: Language, tests: Sequence[Test], prelude: str = "") -> None:
        """Raise what `submit` would raise for a program in this language with these tests, and SandboxError where the
        prelude fails."""
        ...

    def keep_off_engines(self) -> None:
        """From the next program on, use cores to which no engine is bound. Call it once the engines stand."""
        ...

    def close(self) -> None:
        """Stop. Programs that wait are cancelled; futures of those that run raise SandboxClosedError."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
