"""The phases of a run, and how many bytes each kind of thing takes on one device in each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ascent.memory import activations
from ascent.memory.activations import Precision
from ascent.memory.cards import Card
from ascent.memory.cost import cost_of
from ascent.memory.engine_memory import ASLEEP, EngineMemory, engine_memory, transfer_buffers
from ascent.memory.model import WIDTHS, Model
from ascent.memory.passes import Pass, in_two, padded_pass, scoring_pass, training_pass
from ascent.memory.settings import OPTIMIZER_STATES, Batch, Settings, Trained, balances

FLOAT32 = 4
# Ways to lay out a pass are compared with TRL's on short sequences first (`training/batches/passes/self_check.py`)
CHECKED_TOKENS = 3 * 45
SAMPLED_COPIES = 7  # of one step's logits, while transformers' processors and its draw work on them
# What each term is, in the order in which pictures stack them.
TERMS: Mapping[str, str] = {
    "weights": "the policy's weights",
    "reference": "a frozen copy of the policy",
    "gradients": "of the trained weights",
    "optimizer": "the optimizer's state",
    "moved weights": "copies of the weights that GPRO moves",
    "earlier gradients": "those that GPRO keeps beside the one that is being made",
    "casts": "copies of weights for products in another precision",
    "gathered": "weights and gradients of other devices' pieces, while they are used (FSDP)",
    "activations": "what passes keep, and what lives while a layer is computed",
    "logits": "tiles of the output head",
    "samples": "keys, values and logits of transformers' own sampling",
    "engine weights": "the engine's copy of the policy",
    "KV cache": "keys and values of completions that are being sampled",
    "engine workspace": "one pass of the engine",
    "graphs": "captured graphs of the engine",
    "transfer": "buffers in which weights reach the engine",
    "communication": "buffers of groups of ranks",
    "reserve": "context, kernels and fragmentation",
}
ENGINE_TERMS = ("engine weights", "KV cache", "engine workspace", "graphs")
# How far a term may be off before anything was measured on a machine: (lower, upper) as shares of it. The first ones
# are counted; the others depend on kernels and allocators.
ERRORS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("weights", "reference", "gradients", "optimizer", *ENGINE_TERMS[:3]), (0.01, 0.01)),
    **dict.fromkeys(("moved weights", "earlier gradients"), (0.01, 0.01)),
    **dict.fromkeys(("casts", "gathered", "activations", "logits", "samples", "transfer"), (0.15, 0.15)),
    **dict.fromkeys(("graphs", "communication"), (0.5, 0.5)),
    "reserve": (0.6, 0.3),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase on one device: bytes by term. `name` is start, sampling, log-probabilities, training, optimizer step
    or weight update. `exact` are terms whose errors another one takes up: an engine's cache is what its share leaves.
    """

    name: str
    terms: Mapping[str, int] = field(default_factory=dict)
    exact: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.terms.values())

    @property
    def largest(self) -> str:
        """The term that takes most."""
        return max(self.terms, key=lambda name: self.terms[name])

    def bound(self, side: int, errors: Mapping[str, tuple[float, float]] = ERRORS) -> int:
        """The lower (0) or upper (1) end of what it may take. Terms are not off all at once in one direction, but what
        is off in one of them, such as a kernel's workspace, is off in all layers: the ends are their plain sums."""
        sign = 1 if side else -1
        return int(
            sum(
                size if name in self.exact else size * (1 + sign * errors[name][side])
                for name, size in self.terms.items()
            )
        )


def trainer_phases(model: Model, card: Card, settings: Settings) -> tuple[Phase, ...]:
    """Of a device that trains. An engine in the training process is there in all of them; one that sleeps is awake in
    sampling and weight update. Where nothing is scored apart there is no phase of log-probabilities."""
    trained, batch, layout = settings.trained, settings.batch, settings.layout
    held = _held(model, settings)
    optimizer = held.pop("optimizer")
    gradients = held.pop("gradients")
    always = held | _around(card, settings)
    engine = engine_memory(model, card, settings) if settings.engine.place == "colocate" else None
    awake, trains = _engine_terms(engine), _engine_terms(engine)
    if engine is not None and settings.engine.sleeps:
        trains = {"graphs": ASLEEP}
    state = {"optimizer": optimizer}
    gives_back = trained.offload != "none" and engine is not None and card.kind != "cpu"
    while_sampling = {} if gives_back else state
    scores = scoring_pass(batch, cost_of(model), buckets=card.kind != "cpu")
    synced = {"transfer": transfer_buffers(model, settings), "gathered": _synced(model, settings)}
    phases = [
        Phase("start", always | awake),
        Phase("sampling", always | while_sampling | awake | _samples(model, settings)),
        Phase("log-probabilities", always | state | trains | _forward(model, card, settings, scores)),
        Phase("training", always | state | trains | _gradients(model, card, settings, gradients)),
        Phase(
            "optimizer step", always | state | trains | {"gradients": gradients} | _step(model, trained, layout.shards)
        ),
        Phase("weight update", always | while_sampling | awake | synced),
    ]
    if not (trained.scores or trained.reference):
        phases = [phase for phase in phases if phase.name != "log-probabilities"]
    return tuple(Phase(each.name, {name: size for name, size in each.terms.items() if size}) for each in phases)


def engine_phases(model: Model, card: Card, settings: Settings) -> tuple[Phase, ...]:
    """Of a device that only samples; none where the trainers' own do."""
    if settings.engine.place != "server" or not settings.layout.servers:
        return ()
    terms = {name: size for name, size in _engine_terms(engine_memory(model, card, settings)).items() if size}
    around = {
        "reserve": card.reserve,
        "communication": card.collective * (2 if settings.engine.tensor_parallel > 1 else 1),
    }
    update = {"transfer": transfer_buffers(model, settings)}
    exact = (*terms, *around)
    return Phase("sampling", terms | around, exact), Phase("weight update", terms | around | update, exact)


def trained_parameters(model: Model, trained: Trained) -> int:
    """All of them, or the adapters'."""
    return model.parameters if trained.lora is None else model.lora_parameters(trained.lora)


def moved_parameters(model: Model, trained: Trained) -> int:
    """Those that GPRO moves to take its second gradient; all adapters, which lie beside embeddings and head."""
    if trained.penalty is None:
        return 0
    if trained.lora is not None or trained.penalty.moves == "all":
        return trained_parameters(model, trained)
    if trained.penalty.moves == "norms":
        return model.norm_parameters
    return model.parameters - model.embedding_parameters


def _held(model: Model, settings: Settings) -> dict[str, int]:
    """Bytes of weights, reference, gradients and optimizer state, on one of the devices that share them."""
    trained, shards = settings.trained, settings.layout.shards
    count, width = trained_parameters(model, trained), WIDTHS[trained.dtype]
    # FSDP keeps trained weights in float32 (accelerate casts them); adapters are float32 everywhere (PEFT)
    own = FLOAT32 if trained.lora is not None or shards > 1 else width
    frozen = model.parameters if trained.lora is not None else 0
    weights = (frozen * width + count * own) // shards
    state = OPTIMIZER_STATES.get(trained.optimizer, OPTIMIZER_STATES["adamw_torch"])
    reference = model.parameters * width // shards if trained.reference and trained.lora is None else 0
    return {
        "weights": weights,
        "reference": reference,
        "gradients": count * own // shards,
        "optimizer": int(count * own * state) // shards,
    }


def _around(card: Card, settings: Settings) -> dict[str, int]:
    groups = (settings.layout.trainers > 1) + (settings.layout.shards > 1) + (settings.engine.place == "server")
    return {"reserve": card.reserve, "communication": card.collective * groups}


def _engine_terms(engine: EngineMemory | None) -> dict[str, int]:
    if engine is None:
        return {}
    return {
        "engine weights": engine.weights,
        "KV cache": engine.kv_cache,
        "engine workspace": engine.workspace,
        "graphs": engine.graphs,
    }


def _precision(settings: Settings) -> Precision:
    return Precision.of(settings.trained, gathered=settings.layout.shards > 1)


def _gathered(model: Model, settings: Settings, *, backward: bool) -> int:
    """With FSDP: two layers and the outermost unit (embeddings and head), which stays gathered, in the precision of the
    products; in the backward pass of full weights one layer's gradients once more, before they are summed and cut."""
    if settings.layout.shards == 1:
        return 0
    width = _precision(settings).compute
    layer = max(model.layer_parameters(dense=True) if model.dense_layers else 0,
                model.layer_parameters(dense=False) if model.dense_layers < model.layers else 0)  # fmt: skip
    whole = 2 * layer + model.embedding_parameters
    if backward and settings.trained.lora is None:
        whole += layer + model.embedding_parameters
    return whole * width


def _synced(model: Model, settings: Settings) -> int:
    """The largest tensor, whole, on its way to the engine; with tied or unsharded weights it is there already."""
    if settings.layout.shards == 1:
        return 0
    return model.vocabulary * model.hidden * WIDTHS[settings.trained.dtype]


def _forward(model: Model, card: Card, settings: Settings, largest: Pass) -> dict[str, int]:
    """A pass without gradients."""
    precision = _precision(settings)
    transient = activations.layer_transients(model, largest.tokens, precision)
    stream = 2.0 * largest.tokens * model.hidden * precision.stream
    head = activations.head_forward(model, largest.scored, precision, settings.trained, card.kind)
    stream += activations.beside_tokens(model, largest, precision, settings.trained)
    return {
        "activations": int(stream + transient),
        "logits": int(head),
        "casts": int(activations.casts(model, precision, settings.trained, backward=False)),
        "gathered": _gathered(model, settings, backward=False),
    }


def _largest_pass(model: Model, card: Card, trained: Trained, batch: Batch) -> Pass:
    """Of those with gradients."""
    if balances(model, trained):
        return padded_pass(batch, all_scored=card.kind != "cuda")
    return training_pass(batch, cost_of(model), buckets=card.kind != "cpu", checkpointing=trained.checkpointing)


def _gradients(model: Model, card: Card, settings: Settings, gradients: int) -> dict[str, int]:
    """The passes of an optimizer step; with GPRO those that are made again at moved weights: beside them are a copy of
    the moved weights, the first gradient, and once more that of the rows that are repeated, where these are some.

    While the radius is looked for, two further gradients lie beside the one that a pass makes. Such passes are made in
    the training's precision and in float32, for which frozen weights in half precision are copied.
    """
    trained, penalty, shards = settings.trained, settings.trained.penalty, settings.layout.shards
    if penalty is None:
        return _training(model, card, settings, _largest_pass(model, card, trained, settings.batch), gradients)
    part, rest = in_two(settings.batch, penalty.fraction)
    again, found = _largest_pass(model, card, trained, part), []
    moved = {"moved weights": moved_parameters(model, trained) * FLOAT32 // shards}
    kept = gradients
    if rest is not None:
        others = replace(_largest_pass(model, card, trained, rest), count=2)  # gradients of `part` are there
        found.append(_training(model, card, settings, others, gradients) | {"earlier gradients": gradients})
        kept += gradients
    found.append(_training(model, card, settings, again, gradients) | moved | {"earlier gradients": kept})
    if penalty.searches:
        one, more = replace(again, count=1), moved | {"earlier gradients": kept + 2 * gradients}
        precise = replace(settings, trained=replace(trained, dtype="float32", autocast=False))
        found += [_training(model, card, each, one, gradients) | more for each in (settings, precise)]
        if trained.lora is not None and trained.dtype != "float32":
            found[-1]["casts"] += model.parameters * FLOAT32 // shards
    return max(found, key=lambda terms: sum(terms.values()))


def _training(model: Model, card: Card, settings: Settings, largest: Pass, gradients: int) -> dict[str, int]:
    """Forward and backward. The peak lies where the head's backward begins, with all that was kept; or where the last
    layer's does; or at the first layer, when all gradients are there. With several passes gradients are there from the
    second on."""
    trained, precision = settings.trained, _precision(settings)
    kept, again = activations.kept(model, largest, precision, trained)
    transient = activations.layer_transients(model, largest.tokens, precision)
    dense = model.experts is None or model.dense_layers == model.layers
    full = trained.lora is None
    matrix = int(activations.largest_gradient(model.linears(dense=dense), precision)) if full else 0
    head = activations.head_backward(model, largest.scored, precision, trained, card.kind)
    there = gradients if largest.count > 1 else 0
    of_head = model.vocabulary * model.hidden * precision.weights // settings.layout.shards if full else 0
    one_layer = again or kept / model.layers
    points = {
        "head": (there, kept, head),
        "last layer": (there or of_head, kept + again + transient + matrix, 0.0),
        "first layer": (gradients, one_layer + transient + matrix, 0.0),
    }
    checked = activations.head_forward(model, CHECKED_TOKENS, precision, trained, card.kind)
    points["first look"] = (0, 0.0, checked if trained.logits == "tiled" else 0.0)
    if balances(model, trained):
        points["router loss"] = (there, kept + activations.router_loss(model, largest.tokens), 0.0)
    held, keeps, logits = max(points.values(), key=sum)
    return {
        "gradients": int(held),
        "activations": int(keeps + largest.scored * model.hidden * precision.stream),
        "logits": int(logits),
        "casts": int(activations.casts(model, precision, trained, backward=True)),
        "gathered": _gathered(model, settings, backward=True),
    }


def _step(model: Model, trained: Trained, shards: int) -> dict[str, int]:
    """The optimizer's own work: one that walks over lists of tensors (`foreach`) makes a copy of all second moments."""
    if trained.optimizer != "adamw_torch":
        return {}
    own = FLOAT32 if trained.lora is not None or shards > 1 else WIDTHS[trained.dtype]
    return {"activations": trained_parameters(model, trained) * own // shards}


def _samples(model: Model, settings: Settings) -> dict[str, int]:
    """Sampling by transformers: a cache of all completions' keys and values that is copied, a layer at a time, when it
    grows, and the logits of one step."""
    engine, batch = settings.engine, settings.batch
    if engine.kind != "transformers":
        return {}
    rows, width = batch.sampled, WIDTHS[settings.trained.dtype]
    logits = rows * model.vocabulary * FLOAT32 * SAMPLED_COPIES
    cache = rows * model.kv_bytes(batch.length, width)
    prefill = rows * batch.prompt * (6 * model.hidden + 3 * model.intermediate) * width
    return {
        "samples": max(cache + cache // model.layers + logits, rows * model.kv_bytes(batch.prompt, width) + prefill)
    }
