"""One generation while it is being sampled: what was asked of the engine, and what has come back.

An example with two groups of two, the second of which a restarted server must sample again:

    Flight(engine, groups, arrived, is_called)   all four are submitted
    run()                                        (group 0, 1) ends: arrived(1, ...); (group 0, 0) ends: arrived(0, ...)
                                                 the server of group 1 dies: the engine needs weights, run returns
    needs_weights                                True; complete: False
                                                 ... the sampler brings the weights, group 1 is sampled again ...
    run()                                        arrived(2, ...), arrived(3, ...); complete: True
    completions()                                all four, by their places in the local batch: 0, 1, 2, 3
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from ascent.rollout.engine import RolloutEngine
from ascent.training.step.agreement import ENDING, WEIGHTS
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion


class Flight:
    """Completions on their way. They are submitted when it is made; `run` takes them as they come.

    `run` may work in a thread of its own (`start`, `join`), which is then the only one that may use the engine.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        groups: Sequence[LocalGroup],
        arrived: Callable[[int, Completion], None],
        is_called: Callable[[], str | None] = lambda: None,
        steps_of: Callable[[int], int] = lambda version: version,
        already_sampled: Sequence[Completion] = (),
    ) -> None:
        """`arrived(place, completion)` is called for each completion as it ends, with its place in the local batch.
        `is_called` says whether another rank waits for this one (see `Agreement.is_called`). `steps_of` gives the
        optimizer steps behind one of the engine's versions, which is what completions carry from here on.

        Where completions were `already_sampled`, they must be those of `groups`, and nothing is asked of the engine.
        Raises what `RolloutEngine.submit` raises.
        """
        self.groups = list(groups)
        self.needs_weights = False  # how the last `run` ended
        self._engine, self._arrived, self._is_called, self._steps_of = engine, arrived, is_called, steps_of
        self._places = {group.request.group_id: group.first for group in groups}
        self._total = sum(group.request.n for group in groups)
        self._completions: dict[int, Completion] = {}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        for completion in already_sampled:
            self._arrive(completion)
        if not already_sampled:
            engine.submit([group.request for group in groups])

    @property
    def complete(self) -> bool:
        """Whether every completion has come back."""
        return len(self._completions) == self._total

    def run(self) -> None:
        """Take completions until all have come back, until the engine needs weights before it can go on, or until
        another rank ends.

        Raises what the engine raised, also in the thread of `start`.
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
                self._arrive(replace(completion, weight_version=self._steps_of(completion.weight_version)))

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
        """All of them, in the order of their places."""
        return [self._completions[place] for place in range(self._total)]

    def arrived(self) -> list[tuple[LocalGroup, Completion]]:
        """What has come back so far, each with its group."""
        groups = {group.request.group_id: group for group in self.groups}
        return [(groups[completion.group_id], completion) for completion in self._completions.values()]

    def _arrive(self, completion: Completion) -> None:
        place = self._places[completion.group_id] + completion.index
        self._completions[place] = completion
        self._arrived(place, completion)

    def _run_kept(self) -> None:
        try:
            self.run()
        except BaseException as failure:  # noqa: BLE001 - raised by the next `run`
            self._failure = failure
