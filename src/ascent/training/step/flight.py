"""One generation while it is being sampled: what was asked of the engine, and what has come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ascent.rollout.engine import EngineLostError, RolloutEngine
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion


class Flight:
    """Completions on their way. Submitted when it is made; `run` takes what comes.

    `run` may work in a thread of its own (`start`, `join`), which is then the only one that may use the engine. `lost`
    says why it can never be completed.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        groups: Sequence[LocalGroup],
        arrived: Callable[[int, Completion], None],
        there: Sequence[Completion] = (),
    ) -> None:
        """`arrived(place, completion)` is called for each completion as it ends, with its place in the local batch.

        Where `there` holds completions already, they must be those of `groups`, and nothing is asked of the engine.
        Raises what `RolloutEngine.submit` raises.
        """
        self.groups = list(groups)
        self._engine, self._arrived = engine, arrived
        self._places = {group.request.group_id: group.first for group in groups}
        self._total = sum(group.request.n for group in groups)
        self._completions: dict[int, Completion] = {}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.lost: EngineLostError | None = None
        for completion in there:
            self._arrive(completion)
        if not there:
            engine.submit([group.request for group in groups])

    @property
    def complete(self) -> bool:
        """Whether every completion has come back."""
        return len(self._completions) == self._total

    def run(self) -> None:
        """Take completions until all are there, or until the engine needs weights before it can go on.

        Raises what the engine raised, also in the thread of `start`.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        while not self.complete and not self._engine.needs_weights():
            for completion in self._engine.poll():
                self._arrive(completion)

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

    def _arrive(self, completion: Completion) -> None:
        place = self._places[completion.group_id] + completion.index
        self._completions[place] = completion
        self._arrived(place, completion)

    def _run_kept(self) -> None:
        try:
            self.run()
        except BaseException as failure:  # noqa: BLE001 - raised by the next `run`
            self._failure = failure
