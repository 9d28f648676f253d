"""Why a layout can't be, in words: what is missing where, and which settings would fit instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ascent.cluster.nodes import Node
from ascent.cluster.places import Layout, Wanted
from ascent.errors import InputError

_SHOWN = 8  # nodes that a message names one by one
_EVERY_SHARE = 16  # ranks of a node up to which every number is tried as what would fit

# the layout of what is wanted, or None where it doesn't fit
Place = Callable[[Wanted], Layout | None]


class DoesNotFitError(InputError):
    """The nodes don't hold what is wanted. `missing`: what is too little where; `would_fit`: settings that fit."""

    def __init__(self, message: str, missing: Sequence[str], would_fit: Sequence[str]) -> None:
        lines = [message, *(f"  {line}" for line in missing)]
        mend = f"What would fit: {'; or '.join(would_fit)}." if would_fit else ""
        super().__init__("\n".join(lines), mend or "Join more nodes: ascent cluster commands prints how.")
        self.missing = tuple(missing)
        self.would_fit = tuple(would_fit)


def refusal(nodes: Sequence[Node], wanted: Wanted, kind: str, place: Place) -> DoesNotFitError:
    """For ranks and replicas that the nodes, which are in order, can't hold together."""
    needed = wanted.ranks + wanted.replicas * wanted.tensor_parallel
    there = sum(node.count(kind) for node in nodes)
    what = _needs(wanted)
    message = f"{what} take {needed} {_units(kind)}; there are {there} on {_many(len(nodes), 'node')}"
    if needed <= there:
        message += ", but not where they are needed"
    missing = [*_missing(nodes, wanted, kind, place), *_listed(nodes)]
    return DoesNotFitError(message, missing, list(_would_fit(nodes, wanted, kind, place)))


def no_judge(nodes: Sequence[Node], wanted: Wanted, made: Layout, place: Place) -> DoesNotFitError:
    """For a layout of everything but judges, which need a core of their own."""
    left = max(node.cpus - made.processes(node) for node in nodes)
    needed = wanted.judge_cpus or 1
    message = f"no node has {_many(needed, 'core')} left to judge programs: ranks and servers take one a process"
    missing = [f"{node}: {node.cpus} cores, {made.processes(node)} of them taken" for node in nodes[:_SHOWN]]
    would_fit = [f"cluster.judge_cpus={left}"] if left > 0 else []
    return DoesNotFitError(message, [*missing, *_more(nodes)], would_fit or list(_would_fit(nodes, wanted, "", place)))


def _needs(wanted: Wanted) -> str:
    parts = []
    if wanted.ranks:
        parts.append(_many(wanted.ranks, "training process"))
    if wanted.replicas:
        over = f" of {wanted.tensor_parallel}" if wanted.tensor_parallel > 1 else ""
        parts.append(_many(wanted.replicas, "server") + over)
    return " and ".join(parts)


def _missing(nodes: Sequence[Node], wanted: Wanted, kind: str, place: Place) -> Iterator[str]:
    alone = replace(wanted, replicas=0)
    if wanted.ranks and place(alone) is None:
        counts = [count for count in range(1, len(nodes) + 1) if wanted.ranks % count == 0]
        count = wanted.nodes or max(counts)
        each = wanted.ranks // count
        able = sum(node.count(kind) >= each for node in nodes)
        yield f"training: {_many(count, 'node')} with {each} {_units(kind)} each; {able} of {len(nodes)} have so many"
    if wanted.replicas:
        size = wanted.tensor_parallel
        room = _largest(lambda count: place(replace(wanted, ranks=0, nodes=None, replicas=count)), wanted.replicas)
        beside = "" if room < wanted.replicas else "beside the training "
        if beside and wanted.ranks:
            room = _largest(lambda count: place(replace(wanted, replicas=count)), wanted.replicas)
        if room < wanted.replicas:
            yield f"servers: {beside}there is room for {room} of {wanted.replicas} that take {size} on one node"


def _would_fit(nodes: Sequence[Node], wanted: Wanted, kind: str, place: Place) -> Iterator[str]:
    """Settings that fit, each beside the others as they were."""
    alone = wanted.ranks == 0  # servers that stand by themselves are asked for by options
    if wanted.ranks:
        yield from _other_ranks(nodes, wanted, place)
    if wanted.replicas:
        fewer = _largest(lambda count: place(replace(wanted, replicas=count)), wanted.replicas)
        if 0 < fewer < wanted.replicas:
            yield f"--replicas {fewer}" if alone else f"rollout.replicas={fewer}"
        narrower = wanted.tensor_parallel // 2
        while narrower and place(replace(wanted, tensor_parallel=narrower)) is None:
            narrower //= 2
        if narrower:
            yield f"-tp {narrower}" if alone else f"rollout.tensor_parallel_size={narrower}"


def _other_ranks(nodes: Sequence[Node], wanted: Wanted, place: Place) -> Iterator[str]:
    """The next smaller and the next larger number of ranks that fit."""
    rooms = {max(node.devices, node.cpus if not node.devices else 0) for node in nodes}
    largest = max(rooms)
    shares = sorted({*range(1, min(largest, _EVERY_SHARE) + 1), *rooms} - {0})
    fitting: dict[int, int] = {}  # ranks -> training nodes, as few as can be
    for each in shares:

        def placed(count: int, each: int = each) -> Layout | None:
            return place(replace(wanted, ranks=count * each, nodes=count, min_nodes=None))

        for count in range(1, _largest(placed, len(nodes)) + 1):
            fitting[count * each] = min(count, fitting.get(count * each, count))
    smaller = sorted((ranks for ranks in fitting if ranks < wanted.ranks), reverse=True)
    larger = sorted(ranks for ranks in fitting if ranks > wanted.ranks)
    for found in (smaller, larger):
        for ranks in found:
            count = fitting[ranks]
            if place(replace(wanted, ranks=ranks, nodes=count, min_nodes=None)) is not None:
                nodes_word = f" cluster.nodes={count}" if wanted.nodes is not None else ""
                yield f"--devices {ranks}{nodes_word} ({count} x {ranks // count})"
                break


def _largest(place: Callable[[int], Layout | None], most: int) -> int:
    """The largest number up to `most` that can be placed; what fits so many times fits fewer times too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if place(middle) is not None else (low, middle - 1)
    return low


def _listed(nodes: Sequence[Node]) -> list[str]:
    return [f"{node}: {node.has}" for node in nodes[:_SHOWN]] + _more(nodes)


def _more(nodes: Sequence[Node]) -> list[str]:
    return [f"and {len(nodes) - _SHOWN} more"] if len(nodes) > _SHOWN else []


def _units(kind: str) -> str:
    return "cores" if kind == "cpu" else kind


def _many(count: int, what: str) -> str:
    if count == 1:
        return f"1 {what}"
    return f"{count} {what}{'es' if what.endswith('s') else 's'}"
