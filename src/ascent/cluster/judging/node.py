"""The judge of one node: an actor of Ray that holds one sandbox. Several processes of a run ask it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ascent.cluster.judging.messages import (
    About,
    Answer,
    Asked,
    dump_about,
    dump_answer,
    load_request,
    load_tests,
)
from ascent.sandbox import Limits, Sandbox, SandboxError, Test, Verdict
from ascent.sandbox.types import Language

_MOST_TESTS = 1 << 30  # characters of tests that are kept


class NodeJudge:
    """Asked through messages; several questions at once."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings` are the arguments of `Sandbox`, its limits as a mapping."""
        self._tests = _KeptTests(_MOST_TESTS)
        self._sandbox: Sandbox | None = None
        self._error = ""
        try:
            self._sandbox = Sandbox(**{**settings, "limits": Limits(**settings["limits"])})
        except SandboxError as error:  # told to whoever asks: an actor that can't be made says less
            self._error = str(error)

    async def about(self) -> str:
        """What it can do (`About`). It answers at once, however much there is to judge."""
        if self._sandbox is None:
            return dump_about(About(0, "none", self._error))
        return dump_about(About(self._sandbox.slots, self._sandbox.level))

    async def judge(self, text: str) -> str:
        """Judge the programs of a `Request`; an `Answer`."""
        request = load_request(text)
        for name, content in request.tests.items():
            self._tests.keep(name, content)
        missing = {asked.tests for asked in request.programs if asked.tests not in self._tests}
        if missing:
            return dump_answer(Answer(missing=tuple(missing)))
        verdicts = await asyncio.gather(*[self._verdict(asked) for asked in request.programs])
        return dump_answer(Answer(tuple(verdicts)))

    def _verdict(self, asked: Asked) -> asyncio.Future[Verdict]:
        if self._sandbox is None:
            raise SandboxError(self._error)
        tests = self._tests[asked.tests]
        return asyncio.wrap_future(self._sandbox.submit(asked.program, tests, asked.limits, later=asked.later))

    async def check(self, language: Language, prelude: str) -> str:
        """Why programs in this language with this prelude can't be judged here; empty where they can."""
        if self._sandbox is None:
            return self._error
        try:
            await asyncio.to_thread(self._sandbox.check, language, (), prelude)
        except SandboxError as error:
            return str(error)
        return ""

    async def keep_off_engines(self) -> None:
        """See `Sandbox.keep_off_engines`."""
        if self._sandbox is not None:
            self._sandbox.keep_off_engines()

    async def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            await asyncio.to_thread(self._sandbox.close)


class NodeJudgeActor(NodeJudge):
    """As Ray makes it, in a process of its own (`actors.py`)."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """See NodeJudge."""
        _end_with_parent()
        super().__init__(settings)


class _KeptTests:
    """Tests by digest; those that were not used for longest are forgotten where they are too many."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[str, tuple[int, tuple[Test, ...]]] = OrderedDict()

    def keep(self, name: str, text: str) -> None:
        if name in self._kept:
            return
        self._kept[name] = len(text), load_tests(text)
        self._size += len(text)
        while self._size > self._most and len(self._kept) > 1:
            _, (size, _) = self._kept.popitem(last=False)
            self._size -= size

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __getitem__(self, name: str) -> tuple[Test, ...]:
        self._kept.move_to_end(name)
        return self._kept[name][1]


def _end_with_parent() -> None:
    """Ray ends its processes through the node's raylet, which started this one. Killed, it leaves them behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, name="raylet-watch", daemon=True).start()
