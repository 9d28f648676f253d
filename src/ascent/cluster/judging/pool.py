"""The judges of several nodes behind the sandbox's own seam: rewards see no difference.

One thread keeps the books (`batches.py`): everything that happens reaches it through a queue, in order. A node that
does not answer, or answers what isn't a verdict, is treated alike: its programs are judged once more elsewhere, and a
program that is lost twice gets a verdict of an `infrastructure_error`, which masks it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from ascent.cluster.judging.batches import Batch, Batches, Waiting, begins
from ascent.cluster.judging.digests import TestDigests
from ascent.cluster.judging.far import FarJudge, JudgeLostError
from ascent.cluster.judging.messages import (
    About,
    Asked,
    MessageError,
    Request,
    dump_request,
    dump_tests,
    load_about,
    load_answer,
)
from ascent.sandbox.errors import SandboxClosedError, SandboxError
from ascent.sandbox.judge import make_plan
from ascent.sandbox.types import LEVELS, Language, Level, Limits, Outcome, Program, Test, Verdict

_PING, _SILENCE = 10.0, 60.0  # seconds between two signs of life, and without one until a node counts as lost
_RETRY = 2.0  # seconds between two looks whether a lost judge is back
_PATIENCE = 120.0  # seconds without any node until programs are given up; and for an answer to `check`


@dataclass(slots=True)
class _Node:
    """What the pool's thread knows of a judge. Times are of `time.monotonic()`."""

    judge: FarJudge
    label: str
    known: set[str] = field(default_factory=set)  # digests of the tests that it has
    asked: float | None = None  # when it was asked for a sign of life that hasn't come
    look: float = 0.0  # when to look after it next
    gone: bool = False  # for good


class JudgePool:
    """Judges programs on several nodes; see `sandbox.judges.Judges`. `sharers` processes use the same judges."""

    def __init__(
        self,
        judges: Mapping[str, FarJudge],
        about: Mapping[str, About],
        *,
        limits: Limits,
        require: Level,
        allow_in_process: bool = False,
        sharers: int = 1,
    ) -> None:
        """`judges` by a name for people, with what they said of themselves."""
        self._limits, self._require, self._allow_in_process = limits, require, allow_in_process
        self._nodes = {label: _Node(judge, label) for label, judge in judges.items()}
        self._batches = Batches(sharers)
        for label, each in about.items():
            self._batches.add(label, each.slots)
        self.slots = sum(each.slots for each in about.values())
        self.level: Level = min((each.level for each in about.values()), key=LEVELS.index)
        self._digests = TestDigests()
        self._checked: dict[tuple[Language, str], str] = {("python", ""): ""}
        self._opened = ExitStack()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of `_closed` and what is put before it
        self._closed = self._ending = False
        self._alone_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="judge-pool", daemon=True)
        self._thread.start()

    def submit(
        self, program: Program, tests: Sequence[Test], limits: Limits | None = None, *, later: bool = False
    ) -> Future[Verdict]:
        """See `Sandbox.submit`."""
        make_plan(program, tests, self._allow_in_process)
        if program.language != "python":
            self._check_nodes(program.language, "")
        kept, digest = self._digests.of(tests)
        waiting = Waiting(Asked(program, digest, limits or self._limits, later), kept, Future())
        with self._lock:
            if self._closed:
                raise SandboxClosedError("the judges are closed")
            self._events.put(partial(self._batches.put, waiting))
        return waiting.future

    def check(self, language: Language, tests: Sequence[Test], prelude: str = "") -> None:
        """See `Sandbox.check`: of every node."""
        make_plan(Program("", language, prelude), tests, self._allow_in_process)
        self._check_nodes(language, prelude)

    def keep_off_engines(self) -> None:
        """See `Sandbox.keep_off_engines`: of every node."""
        for node in self._nodes.values():
            node.judge.keep_off_engines()

    def close_after(self, opened: ExitStack) -> None:
        """Have what the judges need closed with the pool."""
        self._opened = opened

    def close(self) -> None:
        """See `Sandbox.close`."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._events.put(partial(self._end, SandboxClosedError("the judges were closed while the program ran")))
        self._thread.join()
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_nodes(self, language: Language, prelude: str) -> None:
        """Raises SandboxError when a node can't judge such programs."""
        key = language, prelude
        if key not in self._checked:
            answers = {label: Future[object]() for label, node in self._nodes.items() if not node.gone}
            for label, answer in answers.items():
                self._nodes[label].judge.check(language, prelude, answer.set_result)
            said = {label: self._objection(answer) for label, answer in answers.items()}
            self._checked[key] = "; ".join(f"{label}: {words}" for label, words in said.items() if words)
        if self._checked[key]:
            raise SandboxError(self._checked[key])

    @staticmethod
    def _objection(answer: Future[object]) -> str:
        """Why a node can't; a node that is lost has none, its programs go elsewhere."""
        try:
            said = answer.result(_PATIENCE)
        except TimeoutError:
            return f"no answer within {_PATIENCE:.0f} s"
        if isinstance(said, JudgeLostError):
            return ""
        return said if isinstance(said, str) else f"its judge failed: {said}"

    # What follows runs in the pool's thread alone.

    def _run(self) -> None:
        while not self._ending:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - a fault of ours must reach the callers, not end this thread
                self._end(SandboxError(f"the judges failed: {type(error).__name__}: {error}"))

    def _turn(self) -> None:
        """Do what has happened, or wait a while for it."""
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=1.0)()
            while not self._ending:
                self._events.get_nowait()()
        if not self._ending:
            self._look_after_nodes()
            self._send()

    def _send(self) -> None:
        while (batch := self._batches.next()) is not None:
            self._ask(batch, again=False)

    def _ask(self, batch: Batch, *, again: bool) -> None:
        node = self._nodes[batch.node]
        needed = {each.asked.tests: each.tests for each in batch.programs if each.asked.tests not in node.known}
        node.known |= needed.keys()
        texts = {digest: dump_tests(tests) for digest, tests in needed.items()}
        request = dump_request(Request(tuple(each.asked for each in batch.programs), texts))
        node.judge.judge(request, lambda said: self._events.put(partial(self._heard, batch, said, again)))

    def _heard(self, batch: Batch, said: object, again: bool) -> None:
        node = self._nodes[batch.node]
        if not self._batches.holds(batch):
            return  # it was given up, and its programs are judged elsewhere
        if isinstance(said, JudgeLostError):
            self._lost(node, str(said), for_good=said.for_good)
        elif isinstance(said, Exception):
            self._batches.ended(batch)
            for each in batch.programs:
                each.future.set_exception(SandboxError(f"the judge of {node.label} failed: {said}"))
        else:
            self._read(batch, said, again)

    def _read(self, batch: Batch, said: object, again: bool) -> None:
        node = self._nodes[batch.node]
        try:
            answer = load_answer(said, [len(each.tests) for each in batch.programs], self._require)
        except MessageError as error:
            self._mask(self._batches.lose_batch(batch), f"{node.label} answered what is no verdict: {error}")
            return
        if answer.missing:  # it began anew, or had to forget some
            node.known.difference_update(answer.missing)
            if again:
                self._mask(self._batches.lose_batch(batch), f"{node.label} can't keep the tests")
            else:
                self._ask(batch, again=True)
        else:
            self._batches.ended(batch)
            for each, verdict in zip(batch.programs, answer.verdicts, strict=True):
                each.future.set_result(verdict)

    def _lost(self, node: _Node, why: str, *, for_good: bool) -> None:
        node.gone |= for_good
        node.look = time.monotonic() + _RETRY
        self._mask(self._batches.lose(node.label), f"its second judge was lost too ({node.label}: {why})")

    def _mask(self, programs: Sequence[Waiting], why: str) -> None:
        for each in programs:
            nothing = (Outcome.NOT_RUN,) * len(each.tests)
            each.future.set_result(Verdict(False, nothing, 0.0, level=self.level, infrastructure_error=why))

    def _look_after_nodes(self) -> None:
        """Signs of life of the nodes that judge; looks whether those that were lost are back."""
        now = time.monotonic()
        for node in self._nodes.values():
            judges = node.label in self._batches.nodes
            if judges and node.asked is not None and now - node.asked > _SILENCE:
                self._lost(node, f"no sign of life for {_SILENCE:.0f} s", for_good=False)
            elif node.asked is None and now >= node.look and not node.gone:
                node.asked, node.look = now, now + (_PING if judges else _RETRY)
                node.judge.about(partial(self._put_alive, node))
        if self._batches.nodes:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        if self._alone_since is not None and (now - self._alone_since > _PATIENCE or self._all_gone()):
            self._mask([each for each in self._batches.take_all() if begins(each)], "no node is left that judges")

    def _all_gone(self) -> bool:
        return all(node.gone for node in self._nodes.values())

    def _put_alive(self, node: _Node, said: object) -> None:
        """From whatever thread the answer comes in."""
        self._events.put(partial(self._alive, node, said))

    def _alive(self, node: _Node, said: object) -> None:
        node.asked = None
        judges = node.label in self._batches.nodes
        if isinstance(said, JudgeLostError):
            if judges:
                self._lost(node, str(said), for_good=said.for_good)
            node.gone |= said.for_good
            return
        try:
            about = load_about(said)
        except MessageError:
            return
        if not judges and not about.error and LEVELS.index(about.level) >= LEVELS.index(self._require):
            node.known.clear()
            self._batches.add(node.label, about.slots)

    def _end(self, why: SandboxError) -> None:
        with self._lock:
            self._closed = self._ending = True
        with contextlib.suppress(queue.Empty):  # programs that came meanwhile
            while True:
                self._events.get_nowait()()
        for each in [*self._batches.take_all(), *self._batches.sent()]:
            if not each.future.cancel():
                each.future.set_exception(why)
