"""A node's judge in this process, asked through the same messages: it can be lost, keep silent, and come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from ascent.cluster.judging.far import Heard, JudgeLostError
from ascent.cluster.judging.node import NodeJudge
from ascent.sandbox.types import Language

SETTINGS = {
    "slots": 1,
    "limits": {"wall_seconds": 5.0, "cpu_seconds": 1.0},
    "require": "confined",
    "nice": 0,
}


class NearJudge:
    """`asked` are the texts of all requests."""

    def __init__(self, **settings: Any) -> None:
        self._settings = SETTINGS | settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._open: list[Heard] = []
        self.node = NodeJudge(self._settings)
        self.asked: list[str] = []
        self.lost = self.for_good = self.silent = False

    def about(self, heard: Heard) -> None:
        self._ask(heard, self.node.about())

    def judge(self, request: str, heard: Heard) -> None:
        self.asked.append(request)
        self._ask(heard, self.node.judge(request))

    def check(self, language: Language, prelude: str, heard: Heard) -> None:
        self._ask(heard, self.node.check(language, prelude))

    def keep_off_engines(self) -> None:
        self._ask(lambda said: None, self.node.keep_off_engines())

    def lose(self, *, for_good: bool = False) -> None:
        """What is asked now, and until `come_back`, has no answer."""
        with self._lock:
            self.lost, self.for_good = True, for_good
            lost, self._open = self._open, []
        for heard in lost:
            heard(JudgeLostError("it was lost", for_good=for_good))

    def come_back(self) -> None:
        """Anew, without any tests."""
        self.close()
        self.node = NodeJudge(self._settings)
        with self._lock:
            self.lost = False

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.node.close(), self._loop).result()

    def _ask(self, heard: Heard, question: Coroutine[Any, Any, Any]) -> None:
        with self._lock:
            lost = self.lost
            if not lost:
                self._open.append(heard)
        if lost:
            question.close()
            heard(JudgeLostError("it was lost", for_good=self.for_good))
            return
        answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        answer.add_done_callback(lambda done: self._tell(heard, done.exception() or done.result()))

    def _tell(self, heard: Heard, said: Any) -> None:
        with self._lock:
            if self.silent or heard not in self._open:
                return
            self._open.remove(heard)
        heard(said)
