"""Where everything of a run stands: nodes and what is wanted -> which node trains with how many ranks, which devices
each replica has, where programs are judged. A function of its arguments alone.

Every training node has as many ranks as the others, and they count on from node to node, so that neighbours in rank are
neighbours on a machine: a collective's ring leaves each machine once. Tensor parallelism stays inside a node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ascent.cluster.nodes import Node, in_order
from ascent.cluster.places import JudgePlace, Layout, ReplicaPlace, TrainingPlace, Wanted
from ascent.cluster.refusal import DoesNotFitError, no_judge, refusal
from ascent.config import RunConfig
from ascent.errors import InputError

JUDGED = "code"  # the reward function that needs a sandbox


def wanted(config: RunConfig, ranks: int) -> Wanted:
    """What a run with so many ranks needs."""
    own_servers = config.rollout.mode == "server" and config.rollout.server is None
    trainer, section = config.trainer, config.cluster
    passes = int(trainer.get("gradient_accumulation_steps") or 1)
    slices = int(trainer.get("steps_per_generation") or passes)
    return Wanted(
        ranks=ranks,
        nodes=section.nodes,
        min_nodes=section.min_nodes,
        replicas=config.rollout.replicas if own_servers else 0,
        tensor_parallel=config.rollout.tensor_parallel_size if own_servers else 1,
        judges=any(each.function == JUDGED for each in config.reward.functions),
        judge_cpus=section.judge_cpus,
        accumulation=math.gcd(passes, slices),
        kind="cpu" if trainer.get("use_cpu") else None,
    )


def lay_out(nodes: Sequence[Node], wanted: Wanted) -> Layout:
    """The layout, the same for any order of `nodes`. Raises InputError for numbers that contradict each other, and
    DoesNotFitError where the nodes don't hold them."""
    _check(wanted)
    ordered = in_order(nodes)
    if not ordered:
        raise DoesNotFitError("the cluster has no node", (), ())
    kind = wanted.kind or _kind(ordered)
    place = partial(_place, ordered, kind)
    made = place(wanted)
    if made is None:
        without_judges = place(replace(wanted, judges=False))
        if without_judges is None:
            raise refusal(ordered, wanted, kind, place)
        raise no_judge(ordered, wanted, without_judges, place)
    _check_min_nodes(made, wanted)
    return made


def lay_out_after_loss(nodes: Sequence[Node], wanted: Wanted, before: Layout) -> Layout:
    """The layout on the nodes that are left: of all that is wanted where these have room, else of what is `smaller`.
    Raises what `lay_out` raises, about the whole."""
    try:
        return lay_out(nodes, wanted)
    except DoesNotFitError as whole:
        for fewer in smaller(wanted, before):
            try:
                return lay_out(nodes, fewer)
            except DoesNotFitError:
                continue
        raise whole from None


def smaller(wanted: Wanted, made: Layout) -> list[Wanted]:
    """What a run that was laid out like `made` may go on with where nodes are lost, the largest first: fewer training
    nodes, down to `min_nodes`, each with as many ranks as there, if the global batch can be dealt out to them. A rank
    then makes `wanted.ranks / ranks` times as many passes, and all its passes are a whole number."""
    if wanted.min_nodes is None or not made.training:
        return []
    each = made.training[0].ranks
    counts = range(wanted.ranks // each - 1, wanted.min_nodes - 1, -1)
    return [
        replace(wanted, ranks=count * each, nodes=count, min_nodes=None)
        for count in counts
        if _divides(count * each, wanted)
    ]


# ---- placing ------------------------------------------------------------------------------------------------------


def _place(nodes: Sequence[Node], kind: str, wanted: Wanted) -> Layout | None:
    """Everything that is wanted on nodes that are in order; None where that can't be. With as few training nodes as can
    be, and among these the first ones by address if then the rest fits too."""
    for count in _node_counts(nodes, wanted):
        each = wanted.ranks // count if count else 0
        able = [node for node in nodes if node.count(kind) >= each]
        if len(able) < count:
            continue

        def slots_lost(node: Node, each: int = each) -> int:
            room = node.count(kind)
            return room // wanted.tensor_parallel - (room - each) // wanted.tensor_parallel

        for chosen in (able[:count], sorted(able, key=slots_lost)[:count]):
            ranks = {node.id: each for node in chosen} if each else {}
            replicas = _replicas(nodes, ranks, wanted, kind)
            if replicas is None:
                continue
            made = _layout(nodes, ranks, replicas, wanted, kind)
            if made.judges or not wanted.judges:
                return made
    return None


def _node_counts(nodes: Sequence[Node], wanted: Wanted) -> list[int]:
    """Numbers of training nodes to try: those that give each the same number of ranks."""
    if wanted.ranks == 0:
        return [0]
    counts = range(1, len(nodes) + 1) if wanted.nodes is None else [wanted.nodes]
    return [count for count in counts if wanted.ranks % count == 0]


def _replicas(nodes: Sequence[Node], ranks: Mapping[str, int], wanted: Wanted, kind: str) -> Counter[str] | None:
    """How many replicas each node has; None where they don't fit. Nodes that don't train are filled first, one after
    the other: a node that is lost then takes as little as can be with it."""
    left, found = wanted.replicas, Counter[str]()
    for node in sorted(nodes, key=lambda node: node.id in ranks):
        room = (node.count(kind) - ranks.get(node.id, 0)) // wanted.tensor_parallel
        found[node.id] = min(left, room)
        left -= found[node.id]
    return None if left else +found


def _layout(
    nodes: Sequence[Node], ranks: Mapping[str, int], replicas: Mapping[str, int], wanted: Wanted, kind: str
) -> Layout:
    """Ranks, replicas and devices numbered in the order of the nodes."""
    training: list[TrainingPlace] = []
    servers: list[ReplicaPlace] = []
    judges: list[JudgePlace] = []
    spare: list[Node] = []
    each = max(ranks.values(), default=0)
    for node in nodes:
        here, size = ranks.get(node.id, 0), wanted.tensor_parallel
        used = here + replicas.get(node.id, 0) * size
        judged = _judge_cpus(node, used, wanted)
        cores = (node.cpus - judged) // used if used else 0  # for each process
        if here:
            first = each * len(training)
            training.append(TrainingPlace(node, here, first, _devices(0, here, kind), here * cores))
        elif each and node.count(kind) - used >= each:
            spare.append(node)
        for number in range(replicas.get(node.id, 0)):
            devices = _devices(here + number * size, size, kind)
            servers.append(ReplicaPlace(node, len(servers), size, devices, size * cores))
        if judged:
            judges.append(JudgePlace(node, judged))
    return Layout(tuple(training), tuple(servers), tuple(judges), tuple(spare), kind)


def _judge_cpus(node: Node, used: int, wanted: Wanted) -> int:
    """Cores of a node that judge, beside `used` processes that need one each: 0 where too few are left."""
    left = node.cpus - used
    if not wanted.judges or left < 1:
        return 0
    if wanted.judge_cpus is None:
        return max(1, left // 2)
    return wanted.judge_cpus if wanted.judge_cpus <= left else 0


def _devices(first: int, count: int, kind: str) -> tuple[int, ...]:
    return () if kind == "cpu" else tuple(range(first, first + count))


def _kind(nodes: Sequence[Node]) -> str:
    kinds = sorted({node.kind for node in nodes if node.devices})
    if len(kinds) > 1:
        raise InputError(
            f"the cluster has accelerators of two kinds: {' and '.join(kinds)}",
            "Ranks of one training compute on one kind: join machines that have the same.",
        )
    return kinds[0] if kinds else "cpu"


# ---- refusing contradictions -----------------------------------------------------------------------------------


def _check(wanted: Wanted) -> None:
    numbers = {
        "--devices": wanted.ranks,
        "rollout.replicas": wanted.replicas,
        "rollout.tensor_parallel_size": wanted.tensor_parallel - 1,
        "cluster.nodes": (wanted.nodes or 1) - 1,
    }
    wrong = [name for name, value in numbers.items() if value < 0]
    if wrong:
        raise InputError(f"{wrong[0]}: a negative number of what is to be placed")
    if wanted.ranks and wanted.nodes is not None and wanted.ranks % wanted.nodes:
        near = sorted({wanted.ranks // wanted.nodes * wanted.nodes, -(-wanted.ranks // wanted.nodes) * wanted.nodes})
        raise InputError(
            f"--devices {wanted.ranks} over cluster.nodes={wanted.nodes}: training nodes have equal numbers of ranks",
            f"Take --devices {' or '.join(str(each) for each in near if each)}, or leave cluster.nodes out.",
        )
    if wanted.min_nodes is not None and wanted.nodes is not None and wanted.min_nodes > wanted.nodes:
        raise InputError(f"cluster.min_nodes={wanted.min_nodes} is more than cluster.nodes={wanted.nodes}")


def _divides(ranks: int, wanted: Wanted) -> bool:
    """Whether so many ranks can make the global batch, by more passes each."""
    return wanted.ranks * wanted.accumulation % ranks == 0


def _check_min_nodes(made: Layout, wanted: Wanted) -> None:
    """Refuse a `min_nodes` on which the run couldn't go on with the same global batch."""
    least, count = wanted.min_nodes, len(made.training)
    if least is None or least >= count:
        return
    each = made.training[0].ranks
    if not _divides(least * each, wanted):
        able = [str(number) for number in range(1, count + 1) if _divides(number * each, wanted)]
        raise InputError(
            f"cluster.min_nodes={least}: {least * each} ranks can't make the batch of {made.ranks} ranks x "
            f"{wanted.accumulation} passes in whole passes",
            f"Take cluster.min_nodes of {', '.join(able)}, or a multiple of "
            f"{least * each // math.gcd(least * each, made.ranks)} as trainer.gradient_accumulation_steps.",
        )
