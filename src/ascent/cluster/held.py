"""The driver's view of one agent: asked how it is once a second, given up where it doesn't answer, given back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ascent.cluster.agent import Agent, Job, State
from ascent.cluster.lease import BEAT, BROKEN, COMING, LOST
from ascent.cluster.logs import Shown
from ascent.cluster.nodes import RESOURCES, Node
from ascent.cluster.places import ReplicaPlace, TrainingPlace
from ascent.errors import InputError

_CALL = 30.0  # seconds for a call to an agent that answers
_OF_NO_USE = ("class_name", "actor_id", "pid:", "namespace", "ip:")  # lines of Ray's about an actor
_ENDED_WITHIN = 20.0  # seconds for its jobs to end


class NodeLostError(RuntimeError):
    """An agent is gone, or its node is; the message says which node and why."""


class Held:
    """One place that the run holds, with its agent there. Nothing here waits, except `call` and `end`."""

    def __init__(self, place: TrainingPlace | ReplicaPlace, kind: str, interface: str | None) -> None:
        """Ask Ray for the place: its agent comes as soon as there is room. `kind`: what the run computes on."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.place = place
        bundle = place.bundle
        named = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
        remote: Any = ray.remote(Agent)
        self._actor = remote.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get(RESOURCES["cuda"], 0),
            resources=named,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node.id, soft=False),
            max_concurrency=4,
            max_restarts=0,
        ).remote(place.node.address, kind, place.cpus, interface)
        self.lost: str | None = None  # why it is given up
        self.jobs: Mapping[str, State] = {}
        self._answered: float | None = None  # when the last question was asked that it has answered
        self._broken_since: float | None = None  # since when its connections are refused
        self._asked_at, self._asked_for = time.monotonic(), self._actor.beat.remote()

    @property
    def node(self) -> Node:
        """Where it is."""
        return self.place.node

    @property
    def came(self) -> bool:
        """Whether the agent has answered at all."""
        return self._answered is not None

    def look(self, shown: Shown, alive: Collection[str]) -> None:
        """Take in an answer, ask again, and give the agent up where there is a reason. `alive`: ids of the nodes that
        Ray takes for alive."""
        import ray

        if self.lost is not None:
            return
        now = time.monotonic()
        if self._asked_for is None and now - self._asked_at >= BEAT:
            self._asked_at, self._asked_for = now, self._actor.beat.remote()
        if self._asked_for is not None and ray.wait([self._asked_for], timeout=0)[0]:
            answer, self._asked_for = self._asked_for, None
            try:
                beat = ray.get(answer)
            except ray.exceptions.ActorUnavailableError as error:  # a connection broke: it may answer the next time
                self._broken_since = self._broken_since or now
                if now - self._broken_since > BROKEN:
                    self._give_up(_cause(error))
            except ray.exceptions.RayError as error:
                self._give_up(_cause(error))
                return
            else:
                self._answered, self.jobs, self._broken_since = self._asked_at, beat.jobs, None
                shown.show(self.node.address, beat.lines)
                if beat.ended is not None:
                    why = beat.ended.replace("the watched process", "the node's Ray process")
                    self._give_up(f"its agent ended everything there: {why}")
        if self.node.id not in alive:
            self._give_up("Ray holds it for dead: its node process was ended, or doesn't reach the head any more")
        elif self._answered is not None and now - self._answered > LOST:
            self._give_up(f"no answer for {LOST:g} s: the machine stands still, or the link to it is cut")

    def late(self) -> bool:
        """Whether the agent should have come by now."""
        return not self.came and time.monotonic() - self._asked_at > COMING

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the agent answers. Raises the agent's InputError, and NodeLostError for none."""
        import ray

        try:
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=_CALL)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise error.cause from None
            raise
        except (ray.exceptions.RayError, TimeoutError) as error:
            self._give_up(_cause(error))
            raise NodeLostError(f"node {self.node}: {self.lost}") from error

    def start(self, job: Job) -> None:
        """Have the agent start a job. Raises what `call` raises."""
        self.call("start", job)

    def end(self) -> Any:
        """Begin to end the jobs; what is returned is waited for by `give_back`."""
        return None if self.lost is not None or not self.came else self._actor.end.remote()

    def kill(self) -> None:
        """Give the place back."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor)

    def _give_up(self, why: str) -> None:
        if self.lost is None:
            self.lost = why


def give_back(held: Collection[Held], meanwhile: Callable[[], None] = lambda: None) -> None:
    """End the jobs of all, and give the places back. A lost one isn't waited for: its keeper ends what it had.

    `meanwhile` is called again and again: what else is held must be asked how it is.
    """
    import ray

    ending = [each for each in (one.end() for one in held) if each is not None]
    until = time.monotonic() + _ENDED_WITHIN
    try:
        while ending and time.monotonic() < until:
            _, ending = ray.wait(ending, num_returns=len(ending), timeout=BEAT / 2)
            meanwhile()
    finally:
        for one in held:
            one.kill()


def _cause(error: BaseException) -> str:
    """What Ray says of an actor that is gone, without ids and advice."""
    if isinstance(error, TimeoutError):
        return f"its agent doesn't answer within {_CALL:g} s"
    if type(error).__name__ == "ActorUnavailableError":
        return "its agent, which ends with the node's Ray, refuses connections"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.lower().startswith(_OF_NO_USE)]
    return "its agent is gone: " + " ".join(told)[:300]
