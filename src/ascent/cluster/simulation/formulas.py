"""Seconds of what a step is made of, from payloads, counts of cards and constants. Bytes and seconds throughout.

Collectives are rings in two levels: within each node, then between nodes with each card's part (the bandwidth terms of
Rabenseifner, "Optimization of collective reduction operations", 2004, and of Patarasuk and Yuan, 2009; a delay for each
step of the ring). No overlap with computing is taken off, so these are upper bounds; stragglers aren't in them.
"""

from __future__ import annotations

import math

from ascent.cluster.simulation.constants import Constants

MIB = 2**20
RELAYED_FROM = 4  # hosts, by transport `http`
FORWARD_BACKWARD = 8  # operations a parameter and token: 2 forward, 4 backward, 2 of the forward pass made again


def compute(parameters: float, tokens: float, constants: Constants) -> float:
    """Forward and backward passes of so many tokens on one card, with activations computed again (checkpointing)."""
    return FORWARD_BACKWARD * parameters * tokens / (constants.tflops * 1e12 * constants.compute_share)


def all_reduce(payload: float, ranks: int, per_node: int, constants: Constants, starts: float = 1) -> float:
    """The sum of `payload` bytes over all ranks, cut into `starts` messages of one after the other. `per_node`: ranks
    that stand on one node, where there are more than one."""
    within = min(ranks, per_node)
    nodes = ranks / within
    bandwidth = 2 * (within - 1) / within * payload / (constants.inside_gb_s * 1e9)
    bandwidth += 2 * (nodes - 1) / nodes * (payload / within) / (constants.between_gb_s * 1e9)
    delay = 2 * ((within - 1) * constants.inside_us + (nodes - 1) * constants.between_us) * 1e-6
    return bandwidth + starts * delay


def gradients(payload: float, ranks: int, per_node: int, constants: Constants) -> float:
    """Gradients of whole copies (data parallel): one all-reduce a step, in buckets."""
    buckets = payload / (constants.bucket_mib * MIB)
    return all_reduce(payload, ranks, per_node, constants, max(1.0, buckets))


def gathers(payload: float, ranks: int, per_node: int, passes: int, constants: Constants) -> float:
    """Weights and gradients of a policy in pieces (FSDP): for each pass two gathers and one scattered sum, each half of
    an all-reduce. Those of the layers follow each other without a gap, so that a pass has one start."""
    return 1.5 * passes * all_reduce(payload, ranks, per_node, constants)


def decode(weights: float, kv_cache: float, tensor_parallel: int, constants: Constants) -> float:
    """One token of each sequence without communication: weights and cache are read once."""
    bandwidth = constants.memory_gb_s * 1e9 * constants.memory_share
    return (weights + kv_cache) / (tensor_parallel * bandwidth)


def tensor_parallel(layers: int, hidden: int, sequences: float, cards: int, constants: Constants, width: int) -> float:
    """Communication of one token of each sequence: two all-reduces a layer, of `hidden` numbers of `width` bytes for
    each sequence, inside a node."""
    return 2 * layers * all_reduce(sequences * hidden * width, cards, cards, constants)


def weights_by_collective(payload: float, hosts: int, constants: Constants) -> float:
    """New weights to all servers by a broadcast; further hosts add the time of a chunk on its way down the tree."""
    chunk = constants.collective_chunk_mib * MIB / (constants.between_gb_s * 1e9)
    return payload / (constants.collective_gb_s * 1e9) + math.log2(hosts) * chunk


def weights_from_one(payload: float, hosts: int, constants: Constants) -> float:
    """New weights through HTTP, every host from the trainer."""
    return payload * hosts / (constants.http_gb_s * 1e9)


def weights_relayed(payload: float, hosts: int, constants: Constants) -> float:
    """New weights through HTTP, passed on by hosts that have them, with all links always busy: the least."""
    bandwidth = constants.http_gb_s * 1e9
    return payload / bandwidth + math.log2(hosts) * constants.http_chunk_mib * MIB / bandwidth


def weights_by_rounds(payload: float, hosts: int, constants: Constants) -> float:
    """New weights as transport `http` passes them on: a chunk is everywhere after log2(hosts + 1) rounds, while the one
    after it is on its way."""
    if hosts < RELAYED_FROM:
        return weights_from_one(payload, hosts, constants)
    return payload / (constants.http_gb_s * 1e9) * max(1.0, math.log2(hosts + 1) / 2)


def judging_cores(programs_a_second: float, constants: Constants) -> float:
    """Cores that judge as fast as programs come."""
    usual = (1 - constants.slow_share) / constants.programs_a_core
    return programs_a_second * (usual + constants.slow_share * constants.slow_seconds)
