"""The judges of a run as actors of Ray: started by one process, found by the others under the run's name."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from ascent.cluster.connection import Cluster, connected
from ascent.cluster.judging.far import FarJudge, JudgeLostError, RayJudge
from ascent.cluster.judging.messages import About, MessageError, load_about
from ascent.cluster.judging.node import NodeJudgeActor
from ascent.cluster.judging.pool import JudgePool
from ascent.cluster.labels import labelled
from ascent.cluster.nodes import Node
from ascent.cluster.places import JudgePlace
from ascent.config.sections import ClusterSection, SandboxSection
from ascent.errors import InputError

JUDGES_VARIABLE = "ASCENT_JUDGES"  # NAME@HOST:PORT: for the processes that a launcher starts
_RESTARTS = 3  # of a judge whose node stands
_CLOSED_WITHIN = 10.0  # seconds for judges to end their sandboxes
_TOLD_EVERY = 30.0  # seconds


def open_pool(settings: SandboxSection, section: ClusterSection) -> JudgePool:
    """The judges of the run that this process belongs to, or where it belongs to none, a judge of its own on every node
    of the cluster. Closed with the pool.

    Raises InputError without a cluster, and where a node can't confine programs as well as is required.
    """
    name, _, address = os.environ.get(JUDGES_VARIABLE, "").partition("@")
    if address:
        section = section.model_copy(update={"address": address})
    with ExitStack() as stack:
        nodes = stack.enter_context(connected(section)).nodes()
        if not name:
            places = [JudgePlace(node, section.judge_cpus or max(1, node.cpus // 2)) for node in nodes if node.cpus]
            name = stack.enter_context(judges_started(places, settings, wait_minutes=section.wait_minutes))
        pool = found_judges(name, nodes, settings, wait_minutes=section.wait_minutes)
        pool.close_after(stack.pop_all())
        return pool


def found_judges(name: str, nodes: Sequence[Node], settings: SandboxSection, *, wait_minutes: float) -> JudgePool:
    """The judges that another process, or this one, has started under that name on some of the cluster's `nodes`. One
    that was lost since then is left out.

    This process belongs to the cluster. Raises InputError where there are none, or they don't answer.
    """
    labels = {node.id: label for label, node in labelled(nodes).items()}
    judges = {labels.get(node, node): RayJudge(actor) for node, actor in _find(name).items()}
    return JudgePool(
        judges,
        wait_for_judges(judges, wait_minutes, all_of_them=False),
        limits=settings.limits(),
        require=settings.require,
        allow_in_process=settings.allow_in_process,
        sharers=int(os.environ.get("WORLD_SIZE", "1")),
    )


def variables_of(name: str, cluster: Cluster) -> dict[str, str]:
    """What processes that a launcher starts need in their environment to find the judges of that name."""
    return {JUDGES_VARIABLE: f"{name}@{cluster.address}"}


@contextmanager
def judges_started(
    places: Sequence[JudgePlace], settings: SandboxSection, *, wait_minutes: float, nice: int = 19
) -> Iterator[str]:
    """A judge in each of the places, until the end of the block. Gives the name under which the run's other processes
    find them (`JUDGES_VARIABLE`). `nice` is that of programs.

    This process belongs to the cluster (`connection.connected`). Raises InputError where a place has no free cores
    within `wait_minutes`, or a node can't confine programs as well as is required.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = f"ascent-judges-{uuid.uuid4().hex}"
    labels = labelled([place.node for place in places])
    few = [place for place in places if place.cpus > place.node.cpus]
    if few:
        raise InputError(
            f"{few[0].node} has {few[0].node.cpus} cores, of which {few[0].cpus} can't judge",
            "Lower cluster.judge_cpus.",
        )
    actors: dict[str, Any] = {}
    stood = False
    try:
        for place in places:
            where = NodeAffinitySchedulingStrategy(place.node.id, soft=False)
            actors[place.node.id] = (
                ray.remote(NodeJudgeActor)
                .options(
                    name=place.node.id,
                    namespace=name,
                    num_cpus=place.cpus,
                    max_restarts=_RESTARTS,
                    scheduling_strategy=where,
                )
                .remote(_sandbox_arguments(settings, place.cpus, nice))
            )
        wait_for_judges({label: RayJudge(actors[node.id]) for label, node in labels.items()}, wait_minutes)
        stood = True
        yield name
    finally:
        if stood:
            closing = [actor.close.remote() for actor in actors.values()]
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSED_WITHIN)
        for actor in actors.values():
            ray.kill(actor)


def _sandbox_arguments(settings: SandboxSection, cpus: int, nice: int) -> dict[str, Any]:
    """Plain data, since they travel: the arguments of `Sandbox`."""
    return {
        "slots": settings.slots or cpus,
        "limits": asdict(settings.limits()),
        "require": settings.require,
        "packages": list(settings.packages),
        "allow_in_process": settings.allow_in_process,
        "nice": nice,
    }


def _find(name: str) -> dict[str, Any]:
    """The judges of that name, by node. Raises InputError where there are none."""
    import ray
    from ray.util import list_named_actors

    nodes = [each["name"] for each in list_named_actors(all_namespaces=True) if each["namespace"] == name]
    if not nodes:
        raise InputError(
            f"{JUDGES_VARIABLE}={name}: the cluster has no judges of that name",
            "The process that started the run is gone: start it again, or unset the variable.",
        )
    return {node: ray.get_actor(node, namespace=name) for node in sorted(nodes)}


def wait_for_judges(
    judges: Mapping[str, FarJudge], wait_minutes: float, *, all_of_them: bool = True
) -> dict[str, About]:
    """What the judges say of themselves, once they stand: all, or those that aren't lost. Raises InputError where one
    doesn't in time, or can't judge as is required."""
    answers: dict[str, Future[object]] = {label: Future() for label in judges}
    for label, judge in judges.items():
        judge.about(answers[label].set_result)
    left, missing = 60 * wait_minutes, set(answers.values())
    while missing and left > 0:
        missing = wait(missing, timeout=min(left, _TOLD_EVERY)).not_done
        left -= _TOLD_EVERY
        if missing and left > 0:
            late = [label for label, answer in answers.items() if answer in missing]
            print(f"waiting for judges: none yet on {', '.join(late)}", file=sys.stderr, flush=True)
    if missing:
        late = [label for label, answer in answers.items() if answer in missing]
        raise InputError(
            f"after {wait_minutes:g} minutes no judge stands on {', '.join(late)}: its cores are taken, or it is gone",
            "Lower cluster.judge_cpus, or wait until other work has left the nodes (`ray status` lists what is free).",
        )
    lost = {label for label, answer in answers.items() if isinstance(answer.result(), JudgeLostError)}
    if not all_of_them and len(lost) < len(answers):
        answers = {label: answer for label, answer in answers.items() if label not in lost}
    said = {label: _read(answer.result()) for label, answer in answers.items()}
    wrong = [f"{label}: {about.error}" for label, about in said.items() if about.error]
    if wrong:
        raise InputError("sandbox: " + "\n  ".join(wrong))
    return said


def _read(said: object) -> About:
    """What a judge said of itself, or as its error that it said nothing."""
    if isinstance(said, Exception):
        return About(0, "none", f"its judge ended: {said}")
    try:
        return load_about(said)
    except MessageError as error:
        return About(0, "none", f"its judge gave no answer that can be read: {error}")
