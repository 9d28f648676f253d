"""One training on so many cards: its times and shares, for each number of cards that is asked about."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ascent.cluster.simulation import formulas
from ascent.cluster.simulation.constants import Constants
from ascent.errors import InputError


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained, and how. `parameters` are held by the policy, of which a token meets `active`; `width` bytes
    each. `tokens` of a training card and step, or `batch` tokens of all of them, in passes of at most `pass_tokens`.
    Cards of a node and of a server; `training_share` of them train, the rest sample `sequences` at once a server."""

    name: str
    parameters: float
    active: float
    layers: int
    hidden: int
    kv_bytes: float
    width: int = 2
    tokens: int = 32768
    batch: int | None = None
    pass_tokens: int = 4096
    prompt: int = 512
    completion: int = 1024
    cards_a_node: int = 8
    training_share: float = 0.5
    tensor_parallel: int = 4
    sequences: int = 64

    @property
    def payload(self) -> float:
        """Bytes of the weights, and of their gradients."""
        return self.parameters * self.width

    def dealt(self, training: int) -> float:
        """Tokens of a step that one of so many training cards has."""
        return self.tokens if self.batch is None else self.batch / training


# 28 layers of 3584, 4 key-value heads of 128: what many models of this size are built like
USUAL = Workload("a model of 7.6 billion parameters", 7.6e9, 7.6e9, 28, 3584, 57344.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One number of cards. Seconds of a step, but for `tp_share` (of a token's decoding), `programs` (a second) and
    `judge_cores`. `gradients` is with whole copies, `gathers` with the policy in pieces; the steps are with the latter
    and weights by a collective, in turn or with sampling beside the training. Communication is half of an update where
    a card has `half_step` tokens a step with whole copies, or `half_pass` tokens a pass in pieces."""

    cards: int
    training: int
    replicas: int
    hosts: int
    compute: float
    gradients: float
    gathers: float
    half_step: float
    half_pass: float
    sampling: float
    tp_share: float
    weights_collective: float
    weights_http: float
    weights_relayed: float
    weights_by_rounds: float
    programs: float
    judge_cores: float

    @property
    def ddp_share(self) -> float:
        """Of the update, with whole copies."""
        return self.gradients / (self.compute + self.gradients)

    @property
    def fsdp_share(self) -> float:
        """Of the update, with the policy in pieces."""
        return self.gathers / (self.compute + self.gathers)

    @property
    def in_turn(self) -> float:
        """A step where each phase waits for the one before."""
        return self.sampling + self.compute + self.gathers + self.weights_collective

    @property
    def beside(self) -> float:
        """A step that samples the next generation while it trains (rollout.staleness=1)."""
        return max(self.sampling, self.compute + self.gathers) + self.weights_collective


def point(workload: Workload, cards: int, constants: Constants) -> Point:
    """The times of a training on so many cards. Raises InputError where they don't make a training and a server."""
    training, replicas, hosts = _dealt(workload, cards)
    tokens = workload.dealt(training)
    passes = math.ceil(tokens / workload.pass_tokens)
    per_node, payload = workload.cards_a_node, workload.payload
    compute = formulas.compute(workload.active, tokens, constants)
    gradients = formulas.gradients(payload, training, per_node, constants)
    gathers = formulas.gathers(payload, training, per_node, passes, constants)
    completions = tokens * training / (workload.prompt + workload.completion)
    sampling, tp_share = _sampling(workload, completions / replicas, constants)
    by_collective = formulas.weights_by_collective(payload, hosts, constants)
    programs = completions / (max(sampling, compute + gathers) + by_collective)
    return Point(
        cards=cards,
        training=training,
        replicas=replicas,
        hosts=hosts,
        compute=compute,
        gradients=gradients,
        gathers=gathers,
        half_step=gradients / compute * tokens,
        half_pass=gathers / passes / compute * tokens,
        sampling=sampling,
        tp_share=tp_share,
        weights_collective=by_collective,
        weights_http=formulas.weights_from_one(payload, hosts, constants),
        weights_relayed=formulas.weights_relayed(payload, hosts, constants),
        weights_by_rounds=formulas.weights_by_rounds(payload, hosts, constants),
        programs=programs,
        judge_cores=formulas.judging_cores(programs, constants),
    )


def _dealt(workload: Workload, cards: int) -> tuple[int, int, int]:
    """Cards that train, servers, and hosts of servers."""
    parallel = workload.tensor_parallel
    if parallel > workload.cards_a_node:
        raise InputError(
            f"servers of {parallel} cards on nodes of {workload.cards_a_node}: a server stands on one node"
        )
    training = round(cards * workload.training_share)
    replicas = (cards - training) // parallel
    if training < 1 or replicas < 1:
        raise InputError(
            f"--cards {cards}: {training} train and {cards - training} sample, in servers of {parallel}",
            "Take more cards, another --training-share, or a smaller -tp.",
        )
    return training, replicas, math.ceil(replicas / (workload.cards_a_node // parallel))


def _sampling(workload: Workload, completions: float, constants: Constants) -> tuple[float, float]:
    """Seconds that one server takes for so many completions, and the share of communication in a token's decoding.
    Prompts' own pass isn't in it: it is one for a group."""
    parallel, together = workload.tensor_parallel, max(1.0, min(workload.sequences, completions))
    talk = formulas.tensor_parallel(workload.layers, workload.hidden, together, parallel, constants, workload.width)
    read = formulas.decode(workload.payload, 0, parallel, constants)
    context = workload.prompt + workload.completion / 2
    with_cache = formulas.decode(workload.payload, together * context * workload.kv_bytes, parallel, constants)
    tokens = max(1.0, completions / together) * workload.completion  # of one sequence after another
    return tokens * (with_cache + talk), talk / (talk + read)
