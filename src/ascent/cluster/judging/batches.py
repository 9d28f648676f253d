"""Which node judges which programs next: plain bookkeeping, without threads, clocks or Ray.

Programs wait here and not on the nodes: a node has at most two batches a slot, one that is judged and one that follows,
so that a slow node holds little and what is lost with a node is small. The programs of a lost node are judged once
more, each in a batch of its own and on another node where there is one: if one of them brings nodes down, it takes few
others along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ascent.cluster.judging.messages import Asked
from ascent.sandbox.types import Test, Verdict

_LARGEST = 8  # programs in a batch: from there on the cost of a message is small beside that of judging
_PER_SLOT = 2  # batches


@dataclass(slots=True, eq=False)
class Waiting:
    """A program that waits for its verdict. `lost_on` names the node that was lost with it."""

    asked: Asked
    tests: tuple[Test, ...]
    future: Future[Verdict]
    lost_on: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Programs that were sent to a node together."""

    node: str
    programs: tuple[Waiting, ...]

    @property
    def later(self) -> bool:
        """Whether they waited until nothing else did."""
        return self.programs[0].asked.later


@dataclass(slots=True)
class _Node:
    slots: int
    most: int  # batches at once
    most_later: int
    batches: list[Batch] = field(default_factory=list)

    def load(self) -> float:
        return sum(len(batch.programs) for batch in self.batches) / self.slots

    def has_room(self, later: bool) -> bool:
        if not later:
            return len(self.batches) < self.most
        return len(self.batches) < self.most and sum(batch.later for batch in self.batches) < self.most_later


class Batches:
    """The programs of one process: those that wait, and those that nodes have."""

    def __init__(self, sharers: int = 1) -> None:
        """`sharers`: how many processes give programs to the same nodes; each has its share of their room."""
        self._sharers = sharers
        self._nodes: dict[str, _Node] = {}
        self._waiting: deque[Waiting] = deque()
        self._later: deque[Waiting] = deque()
        self._again: deque[Waiting] = deque()  # were lost once

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that judge now."""
        return tuple(self._nodes)

    def add(self, node: str, slots: int) -> None:
        """A node that judges from now on, `slots` programs at once."""
        most = max(1, _PER_SLOT * slots // self._sharers)
        self._nodes[node] = _Node(slots, most, max(1, most // _PER_SLOT))

    def put(self, program: Waiting) -> None:
        """A program waits for a node."""
        (self._later if program.asked.later else self._waiting).append(program)

    def next(self) -> Batch | None:
        """The batch to send now, to the node that has least to do for its slots; None while no node has room for what
        waits. Whoever gets it says when it `ended`."""
        for queue in (self._again, self._waiting, self._later):
            self._drop_cancelled(queue)
            if queue and (node := self._choose(queue[0])) is not None:
                size = 1 if queue is self._again else self._size(len(queue))
                taken = [queue.popleft() for _ in range(min(size, len(queue)))]
                batch = Batch(node, tuple(each for each in taken if begins(each)))
                if not batch.programs:
                    return self.next()  # all of them were cancelled
                self._nodes[node].batches.append(batch)
                self._nodes[node] = self._nodes.pop(node)  # to the end: equally loaded nodes take turns
                return batch
        return None

    def holds(self, batch: Batch) -> bool:
        """Whether its node has a batch; not one that was given up, whose programs are judged elsewhere."""
        return batch.node in self._nodes and batch in self._nodes[batch.node].batches

    def ended(self, batch: Batch) -> None:
        """A batch needs its node no more."""
        self._nodes[batch.node].batches.remove(batch)

    def lose(self, name: str) -> tuple[Waiting, ...]:
        """A node is gone. Its programs wait again; those that were lost for the second time are returned."""
        node = self._nodes.pop(name, None)
        return () if node is None else self._again_or_lost(name, [each for b in node.batches for each in b.programs])

    def lose_batch(self, batch: Batch) -> tuple[Waiting, ...]:
        """As `lose`, of one batch of a node that goes on."""
        self.ended(batch)
        return self._again_or_lost(batch.node, batch.programs)

    def _again_or_lost(self, node: str, programs: Sequence[Waiting]) -> tuple[Waiting, ...]:
        twice = tuple(each for each in programs if each.lost_on)
        for each in programs:
            if not each.lost_on:
                each.lost_on = node
                self._again.append(each)
        return twice

    def sent(self) -> Iterator[Waiting]:
        """The programs that nodes have."""
        return (each for node in self._nodes.values() for batch in node.batches for each in batch.programs)

    def take_all(self) -> list[Waiting]:
        """Take all programs that wait."""
        taken = [*self._again, *self._waiting, *self._later]
        for queue in (self._again, self._waiting, self._later):
            queue.clear()
        return taken

    def _choose(self, program: Waiting) -> str | None:
        others = [name for name in self._nodes if name != program.lost_on] or list(self._nodes)
        room = [name for name in others if self._nodes[name].has_room(program.asked.later)]
        return min(room, key=lambda name: self._nodes[name].load(), default=None)

    def _size(self, waiting: int) -> int:
        """Large batches only where every slot has one anyway: a verdict comes with the last of its batch."""
        share = waiting // (_PER_SLOT * sum(node.slots for node in self._nodes.values()))
        return max(1, min(_LARGEST, share))

    @staticmethod
    def _drop_cancelled(queue: deque[Waiting]) -> None:
        while queue and queue[0].future.cancelled():
            queue.popleft().future.set_running_or_notify_cancel()


def begins(program: Waiting) -> bool:
    """Whether its future may be filled: not cancelled. One that was lost has begun already."""
    return bool(program.lost_on) or program.future.set_running_or_notify_cancel()
