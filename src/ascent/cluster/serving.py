"""Servers over the nodes of a cluster: each in a place of its own, and placed anew where that is lost.

A trainer is told where they are by a file (`ascent.rollout.service.placed`). A server that comes back has no weights of
the training, so it samples nothing before weights were delivered and verified.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ascent.cluster import replica
from ascent.cluster.agent import Job
from ascent.cluster.held import Held, NodeLostError, give_back
from ascent.cluster.layout import lay_out
from ascent.cluster.logs import Shown
from ascent.cluster.placement import Placement
from ascent.cluster.places import Wanted
from ascent.cluster.refusal import DoesNotFitError
from ascent.config.sections import ClusterSection
from ascent.rollout.service import placed, servers_file
from ascent.rollout.service.record import name_for
from ascent.rollout.service.server_process import Endpoint
from ascent.rollout.service.settings import ServiceSettings

_PROBE, _AGAIN, _TELL = 1.0, 2.0, 30.0  # seconds between looks at a server, at the room for one, and words about it
_FAILURES = 3  # of a server, without its node being lost, after which there won't be one


@dataclass(slots=True)
class _Slot:
    """One of the servers. `held`: its place, while it has one."""

    number: int
    held: Held | None
    url: str = ""
    port: int = 0
    started: bool = False
    ready: bool = False
    failures: int = 0
    look_at: float = 0.0
    told_at: float = 0.0


class Servers:
    """The servers of one training, or of a standing service. `look` does a little of what is to do, and never waits."""

    def __init__(
        self,
        held: Sequence[Held],
        section: ClusterSection,
        ports: range,
        *,
        kind: str,
        tensor_parallel: int,
        folder: Path,
        name: str,
        token: str,
        placement: Placement,
        shown: Shown,
    ) -> None:
        """`held`: a place for each; `folder`: for their logs, and where they are told of; `placement`: finds room for
        one that lost its place."""
        self._slots = [_Slot(number, each) for number, each in enumerate(held)]
        self._section, self._ports, self._kind, self._tensor_parallel = section, ports, kind, tensor_parallel
        self.folder, self._name, self._token = folder, name, token
        self._placement, self._shown = placement, shown
        self.settings: ServiceSettings | None = None  # of one server; they start once these are known
        self.failed = ""  # why there are no servers any more
        placed.forget(folder)

    @property
    def ready(self) -> bool:
        """Whether all of them serve."""
        return all(slot.ready for slot in self._slots)

    @property
    def urls(self) -> list[str]:
        """Where they are, or were last."""
        return [slot.url for slot in self._slots]

    def variables(self) -> dict[str, str]:
        """What tells a training of them."""
        return {placed.VARIABLE: str(self.folder), "ASCENT_API_KEY": self._token}

    def look(self, alive: Collection[str]) -> None:
        """Take in how they are, and do what is to be done next. `alive`: ids of the nodes that are alive."""
        if self.settings is None and (asked := placed.wanted(self.folder)) is not None:
            self.settings = asked
        for slot in self._slots:
            try:
                self._look_at(slot, alive)
            except NodeLostError as error:
                self._lose(slot, str(error))

    def close(self) -> None:
        """End all, and give their places back. Who follows them is told."""
        placed.forget(self.folder)
        servers_file.publish(self.folder, "failed", self.urls, "the servers were stopped")
        give_back([slot.held for slot in self._slots if slot.held is not None])
        for slot in self._slots:
            slot.held = None

    def _look_at(self, slot: _Slot, alive: Collection[str]) -> None:
        now = time.monotonic()
        if slot.held is None:
            if now >= slot.look_at and not self.failed:
                self._place(slot, now)
            return
        slot.held.look(self._shown, alive)
        if slot.held.lost is not None:
            self._lose(slot, f"node {slot.held.node}: {slot.held.lost}")
        elif slot.held.late():
            self._lose(slot, f"node {slot.held.node}: no agent has come there")
        elif not slot.started:
            if slot.held.came and self.settings is not None:
                self._start(slot, slot.held, self.settings)
        elif (job := slot.held.jobs.get(_job(slot))) is not None and job.code is not None:
            self._fail(slot, slot.held)
        elif not slot.ready and now >= slot.look_at:
            slot.look_at = now + _PROBE
            endpoint = Endpoint(slot.held.node.address, slot.port, self._token)
            if endpoint.guard(_PROBE) is not None:
                self._serves(slot)

    def _place(self, slot: _Slot, now: float) -> None:
        """Ask for a place, if there is room for one."""
        one = Wanted(ranks=0, replicas=1, tensor_parallel=self._tensor_parallel, judges=False, kind=self._kind)
        try:
            place = lay_out(self._placement.room(), one).replicas[0]
        except DoesNotFitError as error:
            slot.look_at = now + _AGAIN
            if now - slot.told_at >= _TELL:
                slot.told_at = now
                _tell(f"{_job(slot)} waits for room: {error.message}")
            return
        slot.held = Held(replace(place, number=slot.number), self._kind, self._section.interface)

    def _start(self, slot: _Slot, held: Held, settings: ServiceSettings) -> None:
        taken = frozenset(
            each.port for each in self._slots if each.held is not None and each.held.node.address == held.node.address
        )
        slot.port = held.call("free_port", self._ports.start, self._ports.stop - 1, taken)
        logs = self.folder / str(slot.number)
        own = replace(
            settings,
            replicas=1,
            tensor_parallel=self._tensor_parallel,
            devices=() if settings.device_kind == "cpu" else tuple(range(self._tensor_parallel)),
            host=held.node.address,
            port=slot.port,
        )
        name = name_for(f"{self._name}-{slot.number}-{secrets.token_hex(3)}")
        told = replica.first_line(own, name=name, logs=logs, token=self._token)
        command = (sys.executable, "-m", "ascent.cluster.replica")
        log = str(logs / "supervisor.log")
        held.start(Job(_job(slot), command, {}, log, processes=self._tensor_parallel, first_line=told))
        slot.started = True

    def _serves(self, slot: _Slot) -> None:
        assert slot.held is not None
        host = slot.held.node.address
        slot.ready, slot.url = True, f"http://[{host}]:{slot.port}" if ":" in host else f"http://{host}:{slot.port}"
        _tell(f"{_job(slot)} serves at {slot.url}")
        if all(each.url for each in self._slots):
            servers_file.publish(self.folder, "ready", self.urls)

    def _fail(self, slot: _Slot, held: Held) -> None:
        """Its process ended by itself; once more elsewhere or here, or never."""
        slot.failures += 1
        last = self._shown.last(held.node.address, _job(slot))
        why = f"{_job(slot)} on node {held.node} ended; it said:\n{last}"
        if slot.failures >= _FAILURES:
            self.failed = f"{_job(slot)} failed {slot.failures} times; the last time it said:\n{last}"
            servers_file.publish(self.folder, "failed", self.urls, self.failed)
        self._lose(slot, why)

    def _lose(self, slot: _Slot, why: str) -> None:
        if slot.held is not None:
            if slot.held.lost is not None:
                self._placement.without.add(slot.held.node.id)
            slot.held.kill()
        again = "" if self.failed else "; it is placed anew"
        _tell(f"{_job(slot)} is lost: {why}{again}")
        slot.held, slot.started, slot.ready, slot.port, slot.look_at = None, False, False, 0, 0.0


def _job(slot: _Slot) -> str:
    return f"replica {slot.number}"


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
