"""One generation while it is being sampled: what was asked of the engine, and what has come back.

An example with two groups of two, the second of which a restarted server must sample again:

    Flight(engine, groups, arrived, is_called)   all four are submitted
    run()                                        (group 0, 1) ends: arrived(1, ...); (group 0, 0) ends: arrived(0, ...)
                                                 the server of group 1 dies: the engine needs weights, run returns
    needs_weights                                True; complete: False
                                                 ... the sampler brings the weights, group 1 is sampled again ...
    run()                                        arrived(2, ...), arrived(3, ...); complete: True
    completions()                                all four, by their places in the local batch: 0, 1, 2, 3

With `further` (dynamic sampling) groups are added while it runs: it is told of every completion, and asked after each
look at the engine which groups are wanted now. The flight is complete when it says that it is done. When it says that
the flight is closed, what is unfinished is broken off, and handed to it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, cast

from ascent.rollout.engine import AbortingEngine, RolloutEngine
from ascent.training.step.agreement import ENDING, WEIGHTS
from ascent.training.step.groups import LocalGroup
from ascent.training.step.parts import joined, requests_of
from ascent.types import Completion


class Further(Protocol):
    """Which groups a flight takes after its first. Called by the thread that runs the flight."""

    @property
    def done(self) -> bool:
        """Whether no further group will be wanted."""
        ...

    @property
    def closed(self) -> bool:
        """Whether nothing that is still being sampled is awaited. Stays true."""
        ...

    def arrived(self, group: LocalGroup, completion: Completion, text: str) -> None:
        """A completion has come back; `text` is what it says."""
        ...

    def broken_off(self, group: LocalGroup, part: Completion) -> None:
        """So much of a completion was there when the flight was closed."""
        ...

    def wanted(self, *, wait: bool) -> Sequence[LocalGroup]:
        """The groups that are to be sampled now. With `wait`, for there is nothing else to do, it may take a moment to
        see. Raises what scoring raised."""
        ...

    def only(self, completions: Sequence[Completion]) -> bool:
        """Whether these completions are all of its first groups'; it wants no others then."""
        ...

    def forget(self) -> None:
        """What has come back won't be asked for."""
        ...


class Flight:
    """Completions on their way. They are submitted when it is made; `run` takes them as they come.

    `run` may work in a thread of its own (`start`, `join`), which is then the only one that may use the engine.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        groups: Sequence[LocalGroup],
        arrived: Callable[[LocalGroup, Completion], None],
        is_called: Callable[[], str | None] = lambda: None,
        steps_of: Callable[[int], int] = lambda version: version,
        already_sampled: Sequence[Completion] = (),
        further: Further | None = None,
    ) -> None:
        """`arrived` is called for each completion as it ends, with its group. `is_called` says whether another rank
        waits for this one (see `Agreement.is_called`). `steps_of` gives the optimizer steps behind one of the engine's
        versions, which is what completions carry from here on. `further` names groups that are to be sampled later.

        Where completions were `already_sampled`, they must be those of all groups, and nothing is asked of the engine.
        Raises what `RolloutEngine.submit` raises.
        """
        self.asked = list(groups)  # at first
        self.groups: list[LocalGroup] = []
        self.further = further
        self.needs_weights = False  # how the last `run` ended
        self._engine, self._arrived, self._is_called, self._steps_of = engine, arrived, is_called, steps_of
        self._of_id: dict[str, LocalGroup] = {}
        self._parts: dict[str, Completion] = {}  # of completions that go on, by their request
        self._total = self._broken_off = 0
        self._completions: dict[int, Completion] = {}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._kept: dict[str, list[Completion]] = {}
        for completion in already_sampled:
            self._kept.setdefault(completion.group_id, []).append(completion)
        self._add(groups)

    @property
    def complete(self) -> bool:
        """Whether every completion has come back, or was broken off."""
        came = len(self._completions) + self._broken_off
        return came == self._total and (self.further is None or self.further.done)

    def run(self) -> None:
        """Take completions until all have come back, until the engine needs weights before it can go on, or until
        another rank ends.

        Raises what the engine or `further` raised, also in the thread of `start`.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self.needs_weights = False
        while not self.complete:
            call = self._is_called()
            self.needs_weights = self._engine.needs_weights(others_do=call == WEIGHTS)
            if self.needs_weights or call == ENDING:
                return
            for completion in self._engine.poll():
                self._arrive(self._whole(completion))
            if self.further is not None:
                self._add(self.further.wanted(wait=self._engine.unfinished() == 0))
                if self.further.closed and self._engine.unfinished():
                    self._break_off(self.further)

    def start(self) -> None:
        """`run` beside this thread."""
        self._thread = threading.Thread(target=self._run_kept, name="ascent-sampling", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for a `run` that was started; then the engine is this thread's again. What it raised, the next `run`
        raises."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def completions(self) -> list[Completion]:
        """All that have come back, in the order of their places."""
        return [self._completions[place] for place in sorted(self._completions)]

    def arrived(self) -> list[tuple[LocalGroup, Completion]]:
        """What has come back so far, each with its group."""
        return [(self._of_id[completion.group_id], completion) for completion in self._completions.values()]

    def _add(self, groups: Sequence[LocalGroup]) -> None:
        """Ask for groups; those that a checkpoint kept come back at once."""
        self.groups += groups
        self._of_id |= {group.request.group_id: group for group in groups}
        self._total += sum(group.coming for group in groups)
        kept = [self._kept.pop(group.request.group_id, None) for group in groups]
        new = [group for group, known in zip(groups, kept, strict=True) if known is None]
        asked = [each for group in new for each in requests_of(group)]
        self._parts |= {request.group_id: part for request, part in asked if part is not None}
        if asked:
            self._engine.submit([request for request, _ in asked])
        for completion in itertools.chain.from_iterable(known or () for known in kept):
            self._arrive(completion)

    def _whole(self, completion: Completion) -> Completion:
        """What an engine gave, with what was sampled of it before."""
        completion = replace(completion, weight_version=self._steps_of(completion.weight_version))
        part = self._parts.pop(completion.group_id, None)
        return completion if part is None else joined(part, completion)

    def _break_off(self, further: Further) -> None:
        for completion in cast(AbortingEngine, self._engine).abort():
            whole = self._whole(completion)
            if whole.finish_reason == "abort":
                self._broken_off += 1
                further.broken_off(self._of_id[whole.group_id], whole)
            else:
                self._arrive(whole)

    def _arrive(self, completion: Completion) -> None:
        group = self._of_id[completion.group_id]
        self._completions[group.first + completion.index] = completion
        self._arrived(group, completion)

    def _run_kept(self) -> None:
        try:
            self.run()
        except BaseException as failure:  # noqa: BLE001 - raised by the next `run`
            self._failure = failure
