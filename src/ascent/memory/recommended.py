"""The settings that the memory of a card allows: the engine's share, its sequences, and the tokens of a pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ascent.memory.advice import largest, share_needed
from ascent.memory.plan import Plan
from ascent.memory.settings import Settings

_SPARE = 0.02  # of the device, that no share takes
_AWAKE = ("start", "sampling", "weight update")  # phases in which an engine that can sleep doesn't


@dataclass(frozen=True, slots=True)
class Recommended:
    """Values for a configuration; None where it doesn't fit with any value. `sequences` are of one engine, `sleep`:
    the engine has to give its memory back while the trainer computes."""

    engine_share: float | None
    max_num_seqs: int | None
    max_num_batched_tokens: int
    max_tokens_per_batch: int | None
    sleep: bool


def recommended(made: Plan) -> Recommended:
    """For the run that was planned, on its card."""
    sleep = False
    share = _share(made)
    if share is None and made.settings.engine.place == "colocate" and made.card.kind != "cpu":
        asleep = made.changed(_with(made.settings, sleeps=True))
        share = _share(asleep)
        sleep = share is not None
        made = asleep if sleep else made
    if share is not None and made.settings.engine.kv_cache is None and made.settings.engine.place == "colocate":
        made = made.changed(_with(made.settings, share=share))
    length = made.settings.batch.length
    wanted = made.settings.batch.sampled * (made.settings.layout.trainers if made.settings.layout.servers else 1)
    sequences = min(wanted, made.engine.kv_tokens // length) or None
    return Recommended(
        engine_share=share if made.settings.engine.kv_cache is None else None,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(min(8192, made.settings.engine.batched_tokens), length),
        max_tokens_per_batch=tokens_that_fit(made),
        sleep=sleep or made.settings.engine.sleeps,
    )


def tokens_that_fit(made: Plan) -> int | None:
    """The most tokens of a pass with which the training fits, with certainty if that is possible; at most those of the
    whole optimizer step. None where not even one sequence fits."""
    batch = made.settings.batch
    most = batch.sampled * batch.length

    def fits(tokens: int) -> bool:
        changed = replace(made.settings, batch=replace(batch, budget=tokens))
        return made.changed(changed).verdict == "fits"

    return largest(fits, batch.length, max(most, batch.length))


def _share(made: Plan) -> float | None:
    """What the engine needs, or what the trainer leaves where that is less; None where its weights don't fit."""
    if made.settings.engine.kind != "vllm" or made.settings.engine.place != "colocate":
        return None
    needs = share_needed(made)
    least = (made.engine.weights + made.engine.workspace + made.engine.graphs) / made.card.usable
    nothing = made.changed(_with(made.settings, share=min(0.98, max(0.01, least + 0.01))))
    together = [phase for phase in nothing.phases if phase.name in _AWAKE or not made.settings.engine.sleeps]
    beside = max(phase.bound(1, made.errors) for phase in together) - nothing.engine.total
    room = 1.0 - beside / made.card.usable - _SPARE
    share = int(min(needs, room) * 100) / 100
    return share if share > least else None


def _with(settings: Settings, **changed: object) -> Settings:
    return replace(settings, engine=replace(settings.engine, **changed))  # type: ignore[arg-type]
