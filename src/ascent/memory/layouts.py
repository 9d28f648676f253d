"""Data, FSDP and tensor layouts for a model on so many cards: which fit, the one with the least traffic first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ascent.errors import InputError
from ascent.memory.advice import FIXED_RADIUS, LORA_RANK, on_adapters, sharded
from ascent.memory.cards import Card
from ascent.memory.model import Model
from ascent.memory.plan import Plan, plan
from ascent.memory.recommended import recommended
from ascent.memory.settings import Layout, Settings


@dataclass(frozen=True, slots=True)
class Choice:
    """One layout, planned: what it is in words, and the settings of a configuration that make it."""

    what: str
    plan: Plan
    words: tuple[str, ...]


def layouts(model: Model, card: Card, cards: int, settings: Settings) -> list[Choice]:
    """The layouts of `cards` devices that fit, best first; where none does, those that may (`close`); else [].

    All weights are preferred to LoRA. Then: an engine beside each trainer before servers of their own, whole copies of
    the policy before pieces, and small engines before large ones, because each of these has less traffic.
    """
    if cards < 1:
        raise InputError(f"--cards {cards}: expected at least 1")
    found = []
    for full in (True, False):
        for choice in _candidates(model, card, cards, settings, full=full):
            if choice.plan.verdict != "no" and choice.plan.engine.kv_tokens >= settings.batch.length:
                found.append(choice)
    return [choice for choice in found if choice.plan.verdict == "fits"] or found


def _candidates(model: Model, card: Card, cards: int, settings: Settings, *, full: bool) -> Iterator[Choice]:
    trained = replace(
        settings.trained,
        lora=None if full else settings.trained.lora or LORA_RANK,
        dtype="float32" if full else "bfloat16" if card.bf16 else "float32",
        offload="none",
        penalty=settings.trained.penalty if full else on_adapters(settings.trained.penalty),
    )
    what = "all weights" if full else f"LoRA of rank {trained.lora}"
    base = replace(settings, trained=trained)
    for shards in sorted({1, cards}):
        engine = replace(base.engine, place="colocate", tensor_parallel=1, replicas=1)
        layout = Layout(trainers=cards, shards=shards)
        yield from _planned(f"{what}, {_cut(cards, shards)}, an engine on each", model, card, base, engine, layout)
    for servers in _shares_for_servers(cards):
        trainers = cards - servers
        for parallel in (each for each in (1, 2, 4, 8, 16) if servers % each == 0):
            for shards in sorted({1, trainers}):
                engine = replace(base.engine, place="server", tensor_parallel=parallel, replicas=servers // parallel)
                layout = Layout(trainers, shards, servers)
                told = f"{what}, {_cut(trainers, shards)}, {_engines(servers // parallel, parallel)}"
                yield from _planned(told, model, card, base, engine, layout)


def _planned(what: str, model: Model, card: Card, base: Settings, engine: object, layout: Layout) -> Iterator[Choice]:
    settings = replace(base, engine=engine, layout=layout)  # type: ignore[arg-type]
    if layout.shards > 1:
        settings = replace(settings, trained=replace(settings.trained, penalty=sharded(settings.trained)))
    try:
        made = plan(model, card, settings)
    except InputError:  # the model's heads can't be dealt out so
        return
    found = recommended(made)
    if found.engine_share is not None and engine.place == "colocate":  # type: ignore[attr-defined]
        settings = replace(settings, engine=replace(settings.engine, share=found.engine_share, sleeps=found.sleep))
        made = made.changed(settings)
    yield Choice(what, made, _words(made))


def _words(made: Plan) -> tuple[str, ...]:
    trained, engine, layout = made.settings.trained, made.settings.engine, made.settings.layout
    words = [f"--devices {layout.trainers}", f"model.dtype={trained.dtype}"]
    if trained.lora is not None:
        words.append(f"model.lora.r={trained.lora}")
    if trained.penalty is not None:
        words.append(f"algorithm.gradient_penalty_parameters={trained.penalty.moves}")
        words += [f"algorithm.{FIXED_RADIUS}"] * (not trained.penalty.searches)
    if layout.shards > 1:
        words.append('trainer.fsdp="full_shard auto_wrap"')
    if engine.place == "server":
        words += [
            "rollout.mode=server",
            f"rollout.replicas={engine.replicas}",
            f"rollout.tensor_parallel_size={engine.tensor_parallel}",
        ]
    else:
        words += [f"memory.engine_share={engine.share:g}", *["memory.engine_sleep=true"] * engine.sleeps]
    return tuple(words)


def _cut(cards: int, shards: int) -> str:
    if cards == 1:
        return "one device"
    return f"cut into {shards} pieces" if shards > 1 else f"a copy on each of {cards} devices"


def _engines(count: int, parallel: int) -> str:
    engines = "one engine" if count == 1 else f"{count} engines"
    return f"{engines} on a device each" if parallel == 1 else f"{engines} over {parallel} devices"


def _shares_for_servers(cards: int) -> list[int]:
    """How many devices sample: half of them, and a quarter."""
    return sorted({each for each in (cards // 2, cards // 4) if 0 < each < cards}, reverse=True)
