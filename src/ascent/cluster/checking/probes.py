"""Whoever looks at a node: an actor of Ray on each, that takes no cores and ends with the check."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ascent.cluster.checking import node_report, one_chunk, reaching, shared_folder
from ascent.cluster.checking.looking import look
from ascent.cluster.checking.node_report import NodeReport, Question
from ascent.cluster.nodes import Node
from ascent.environment import Finding, smoke
from ascent.environment.rules import found
from ascent.errors import InputError


class Probe:
    """On its node. What it is asked and what it answers is plain data."""

    def __init__(self, node: Mapping[str, Any], label: str) -> None:
        self._node, self._label = Node(**node), label
        self._listener: reaching.Listener | None = None
        self._giver: one_chunk.Giver | None = None

    def look(self, question: Mapping[str, Any]) -> str:
        """A `NodeReport` as text."""
        return node_report.dump(look(self._node, self._label, Question(**question)))

    def now(self) -> float:
        """This machine's clock, in seconds since 1970."""
        return time.time()

    def shared(self, folder: str) -> str:
        """See `shared_folder.answer`."""
        return shared_folder.answer(Path(folder), self._node.id)

    def listen(self, first: int, stop: int) -> int | str:
        """The port at which it listens from now on, or why it can't."""
        try:
            self._listener = reaching.Listener(self._node.address, range(first, stop))
        except InputError as error:
            return error.message
        return self._listener.port

    def reach(self, address: str, port: int, word: str) -> str:
        """See `reaching.reach`."""
        return reaching.reach(address, port, word)

    def give(self) -> str:
        """Where it gives out a chunk from now on, as JSON, or why it can't."""
        try:
            self._giver = one_chunk.Giver(self._node.address)
        except OSError as error:
            return json.dumps({"error": str(error)})
        return json.dumps({"source": self._giver.source, "token": self._giver.token, "sha256": self._giver.sha256})

    def take(self, source: str, token: str) -> str:
        """What came of a chunk that another node gives out, as JSON."""
        try:
            sha256, seconds = one_chunk.take(source, token)
        except OSError as error:
            return json.dumps({"error": str(error)})
        return json.dumps({"sha256": sha256, "seconds": seconds})

    def stop_giving(self) -> None:
        """Give out no more."""
        if self._giver is not None:
            self._giver.close()

    def run_rank(self, rank: int, world: int, address: str, port: int, interface: str) -> str:
        """The all-reduce of doctor's smoke test, as one of `world` processes on several nodes: its result as JSON. It
        gives up its own port, at which the first of them may listen."""
        if self._listener is not None:
            self._listener.close()
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": interface,
            "HCCL_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
        }
        for name in ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            if os.environ.get(name) == "":  # Ray's, for an actor that asks for no device
                del os.environ[name]
        step = replace(smoke.ALL_REDUCE, processes=1)
        with tempfile.TemporaryDirectory(prefix="ascent-check-") as folder:
            result = smoke.run_step(step, Path(folder), variables=variables)
        return json.dumps({"outcome": result.outcome, "seconds": result.seconds, "output": result.output[-4000:]})


class Probes:
    """The probes of all nodes, as the process that asks has them: by the node's name for people."""

    def __init__(self, actors: Mapping[str, Any], nodes: Mapping[str, Node]) -> None:
        self._actors, self.nodes = dict(actors), dict(nodes)

    @property
    def labels(self) -> list[str]:
        """The nodes that answer, in order."""
        return list(self._actors)

    def look(self, question: Question, seconds: float) -> tuple[list[NodeReport], list[Finding]]:
        """The reports of those that answer, and A901. The others aren't asked again."""
        calls = {label: actor.look.remote(asdict(question)) for label, actor in self._actors.items()}
        answers, faults = _answers(calls, seconds)
        for label in faults:
            del self._actors[label]
        reports = [node_report.load(text) for text in answers.values()]
        return reports, [
            found("A901", "error", f"{label} gives no report", evidence=[why]) for label, why in faults.items()
        ] or [found("A901", "ok", f"all {len(reports)} nodes answer")]

    def clocks(self) -> dict[str, tuple[float, float]]:
        """How far each node's clock is ahead of this machine's, and the doubt of that: half of the time that the
        question took. In seconds."""
        import ray

        offsets = {}
        for label, actor in self._actors.items():
            asked = time.time()
            there = ray.get(actor.now.remote())
            back = time.time()
            offsets[label] = there - (asked + back) / 2, (back - asked) / 2
        return offsets

    def shared(self, folder: Path) -> dict[str, tuple[str, str]]:
        """Id and answer of each node, see `shared_folder`."""
        answers, faults = _answers(
            {label: actor.shared.remote(str(folder)) for label, actor in self._actors.items()}, 60.0
        )
        said = answers | {label: f"error: {why}" for label, why in faults.items()}
        return {label: (self.nodes[label].id, text) for label, text in said.items()}

    def listen(self, ports: range) -> dict[str, int | str]:
        """The port of each node, or why it has none."""
        answers, faults = _answers(
            {label: actor.listen.remote(ports.start, ports.stop) for label, actor in self._actors.items()}, 60.0
        )
        return answers | faults

    def reach(self, pairs: Sequence[tuple[str, str]], ports: Mapping[str, int]) -> dict[tuple[str, str], str]:
        """Why the first of each pair doesn't reach the second, empty where it does."""
        calls = {
            pair: self._actors[pair[0]].reach.remote(self.nodes[pair[1]].address, ports[pair[1]], pair[1])
            for pair in pairs
        }
        answers, faults = _answers(calls, 60.0)
        return answers | faults

    def deliver(self, giver: str, taker: str) -> dict[str, Any]:
        """One chunk of one node, fetched by another: `seconds`, or `error`."""
        import ray

        given, faults = _answers({giver: self._actors[giver].give.remote()}, 60.0)
        offer: dict[str, Any] = json.loads(given[giver]) if given else {"error": faults[giver]}
        if "error" in offer:
            return offer
        taken, faults = _answers({taker: self._actors[taker].take.remote(offer["source"], offer["token"])}, 60.0)
        ray.wait([self._actors[giver].stop_giving.remote()], timeout=10.0)
        came: dict[str, Any] = json.loads(taken[taker]) if taken else {"error": faults[taker]}
        if "error" not in came and came["sha256"] != offer["sha256"]:
            return {"error": "other bytes came than were sent"}
        return came

    def run_ranks(self, labels: Sequence[str], port: int, interfaces: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """The results of a rank on each of the nodes, that meet at the first one's `port`."""
        address = self.nodes[labels[0]].address
        calls = {
            label: self._actors[label].run_rank.remote(rank, len(labels), address, port, interfaces[label])
            for rank, label in enumerate(labels)
        }
        answers, faults = _answers(calls, smoke.ALL_REDUCE.seconds + 30)
        results = {label: json.loads(text) for label, text in answers.items()}
        return results | {label: {"outcome": "failed", "seconds": 0.0, "output": why} for label, why in faults.items()}


@contextmanager
def probes(nodes: Mapping[str, Node]) -> Iterator[Probes]:
    """A probe on each of the nodes, by their names for people, until the end of the block. This process belongs to the
    cluster."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actors: dict[str, Any] = {}
    try:
        for label, node in nodes.items():
            where = NodeAffinitySchedulingStrategy(node.id, soft=False)
            # one question may hang (a dead disk) while others are answered
            options = {"num_cpus": 0, "scheduling_strategy": where, "max_concurrency": 4}
            actors[label] = ray.remote(Probe).options(**options).remote(asdict(node), label)
        yield Probes(actors, nodes)
    finally:
        for actor in actors.values():
            ray.kill(actor)


def _answers(calls: Mapping[Any, Any], seconds: float) -> tuple[dict[Any, Any], dict[Any, str]]:
    """The answers that come in time, and why others don't."""
    import ray
    from ray.exceptions import RayError

    ray.wait(list(calls.values()), num_returns=len(calls), timeout=seconds)
    answers, faults = {}, {}
    for name, call in calls.items():
        try:
            answers[name] = ray.get(call, timeout=0.1)
        except TimeoutError:
            faults[name] = f"no answer within {seconds:.0f} s"
        except RayError as error:
            faults[name] = str(error).strip().splitlines()[-1].strip()
    return answers, faults
