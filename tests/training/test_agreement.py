"""What is tried again, and that all ranks go on or end alike. Ranks are threads here, processes in test_two_ranks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.rollout.engine import (
    EngineLostError,
    ServerMemoryError,
    ServersRestartingError,
    WeightMismatchError,
    WeightsLostError,
    WeightSyncError,
    WeightTransferError,
)

pytestmark = pytest.mark.torch


class Board:
    """What two ranks in threads know of each other."""

    def __init__(self, count: int = 2) -> None:
        self.barrier = threading.Barrier(count)
        self.things: list[Any] = [None] * count
        self.calls: set[str] = set()


class ThreadRanks:
    """One of them: as `Ranks`, over a Board."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.count = board, rank, len(board.things)

    def exchange(self, thing: Any) -> list[Any]:
        self.board.things[self.rank] = thing
        self.board.barrier.wait(5)
        things = list(self.board.things)
        self.board.barrier.wait(5)
        return things

    def max_over_ranks(self, number: int) -> int:
        return max(self.exchange(number))

    def any_rank(self, here: bool) -> bool:
        return bool(self.max_over_ranks(int(here)))

    def call(self, why: str) -> None:
        self.board.calls.add(why)

    def called(self, *whys: str) -> str | None:
        return next((why for why in whys if why in self.board.calls), None)


def on_two_ranks(task: Callable[[Any, int], Any]) -> list[Any]:
    """`task(agreement, rank)` on both at once; what it returned, or the exception."""
    from ascent.training.step.agreement import Agreement

    board = Board()

    def run(rank: int) -> Any:
        agreement = Agreement(ThreadRanks(board, rank))  # type: ignore[arg-type]
        try:
            return task(agreement, rank)
        except Exception as error:  # noqa: BLE001 - it is what the test looks at
            return error if agreement.ended_with is error else f"not agreed: {error!r}"

    with ThreadPoolExecutor(2) as pool:
        return [done.result(10) for done in [pool.submit(run, rank) for rank in (0, 1)]]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("ascent.training.step.agreement.time.sleep", waited.append)
    return waited


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [
        (WeightMismatchError("differs", ["a"]), 2),
        (WeightTransferError("HTTP 500"), 4),
        (ServersRestartingError("all died"), 3),
        (WeightSyncError("names differ"), 1),
        (ServerMemoryError("a server ran out of memory"), 1),
        (EngineLostError("gone"), 1),
        (InputError("no such setting", "Leave it out."), 1),
        (ModuleNotFoundError("No module named 'vllm_ascend'"), 1),
    ],
)
def test_what_fails_on_one_rank_for_ever_ends_both_alike(failure: Exception, attempts: int) -> None:
    tried = [0, 0]

    def task(agreement: Any, rank: int) -> None:
        repeated: Counter[type[Exception]] = Counter()
        while True:
            tried[rank] += 1
            if not agreement.settle(failure if rank == 1 else None, repeated):
                return

    first, second = on_two_ranks(task)
    assert tried == [attempts, attempts]
    assert second is failure
    assert str(first) == str(second)
    if not isinstance(failure, ModuleNotFoundError):
        assert type(first) is type(second)


def test_what_a_second_attempt_mends_goes_on_on_both(no_waiting: list[float]) -> None:
    def task(agreement: Any, rank: int) -> int:
        repeated: Counter[type[Exception]] = Counter()
        failures: list[Exception | None] = [WeightTransferError("HTTP 500"), WeightTransferError("reset"), None]
        rounds = 1
        while agreement.settle(failures.pop(0) if rank == 0 else None, repeated):
            rounds += 1
        return rounds

    assert on_two_ranks(task) == [3, 3]
    assert sorted(no_waiting) == [0.5, 0.5, 3.0, 3.0]


def test_lost_weights_are_brought_as_often_as_they_are_lost() -> None:
    def task(agreement: Any, rank: int) -> int:
        repeated: Counter[type[Exception]] = Counter()
        return sum(agreement.settle(WeightsLostError("restarted") if rank else None, repeated) for _ in range(20))

    assert on_two_ranks(task) == [20, 20]


def test_the_gravest_of_two_failures_counts() -> None:
    def task(agreement: Any, rank: int) -> None:
        failure = EngineLostError("5 restarts in 30 minutes") if rank == 0 else WeightsLostError("restarted")
        agreement.settle(failure, Counter())

    first, second = on_two_ranks(task)
    assert [type(first), type(second)] == [EngineLostError, EngineLostError]
    assert str(first) == str(second) == "5 restarts in 30 minutes"


def test_both_failing_end_with_the_words_of_the_lower_rank() -> None:
    def task(agreement: Any, rank: int) -> None:
        agreement.raise_on_all_ranks(InputError(f"refused on {rank}", "Change it."))

    first, second = on_two_ranks(task)
    assert str(first) == str(second) == "refused on 0\n  Change it."


def test_who_fails_calls_the_others() -> None:
    from ascent.training.step.agreement import ENDING, WEIGHTS, Agreement

    board = Board(1)
    agreement = Agreement(ThreadRanks(board, 0))  # type: ignore[arg-type]
    assert agreement.is_called() is None
    agreement.settle(WeightsLostError("restarted"), Counter())
    assert agreement.is_called() == WEIGHTS
    with pytest.raises(EngineLostError):
        agreement.settle(EngineLostError("gone"), Counter())
    assert agreement.is_called() == ENDING


def test_a_failing_walk_over_the_weights_is_this_rank_s_own_end() -> None:
    """The other ranks may stand inside the walk, which is collective: they can't be asked."""
    from ascent.training.step.agreement import Agreement
    from ascent.training.step.clock import StepClock
    from ascent.training.step.sampler import Sampler

    class Weights:
        steps = 0

        def content(self) -> str:
            return "first"

        def canary(self) -> None: ...

        def named_tensors(self) -> Any:
            yield "a", None
            raise RuntimeError("out of memory while gathering b")

    class Engine:
        def update_weights(self, tensors: Any, version: int, canary: Any) -> None:
            list(tensors)

    settled: list[Exception | None] = []

    class Watched(Agreement):
        def settle(self, failure: Exception | None, repeated: Counter[type[Exception]]) -> bool:
            settled.append(failure)
            return super().settle(failure, repeated)

    agreement = Watched(ThreadRanks(Board(1), 0))  # type: ignore[arg-type]
    nothing: Any = lambda *_: None  # noqa: E731
    sampler = Sampler(Engine(), Weights(), agreement, StepClock(), nothing, nothing, nothing)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="while gathering b"):
        sampler.sync()
    assert agreement.ended_with is None
    assert settled == []


def test_why_no_server_got_the_weights() -> None:
    from ascent.rollout.engines.served.weight_failures import why_none_got_them
    from ascent.rollout.weights.control import ServerCallError

    failing, silent = ServerCallError("HTTP 500: oops", 500), ServerCallError("no answer within 4 s")
    refused = WeightSyncError("the server can't verify weights")
    full = ServerCallError("NPU out of memory. Tried to allocate 2 GiB", 500)
    assert type(why_none_got_them({"a": failing, "b": silent}, {"a", "b"})) is WeightTransferError
    assert type(why_none_got_them({"a": failing, "b": silent}, {"b"})) is WeightTransferError
    assert type(why_none_got_them({"a": failing, "b": silent}, ())) is ServersRestartingError
    assert type(why_none_got_them({"a": refused, "b": silent}, {"a"})) is WeightSyncError
    assert type(why_none_got_them({"a": refused, "b": silent}, {"b"})) is WeightTransferError
    assert type(why_none_got_them({"a": full, "b": silent}, {"a", "b"})) is ServerMemoryError
