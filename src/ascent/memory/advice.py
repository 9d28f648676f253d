"""What to change first: every change that a run survives, and the bytes that it gains at the peak."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from ascent.errors import InputError
from ascent.memory.plan import Plan
from ascent.memory.settings import Penalty, Settings, Trained

LORA_RANK = 16
FIXED_RADIUS = "gradient_penalty_radius=NUMBER"


@dataclass(frozen=True, slots=True)
class Change:
    """One setting to change (`setting`, as a configuration writes it), what it costs in words, and the bytes by which
    the largest of the phases shrinks. `fits` says whether the run fits with this change alone."""

    setting: str
    costs: str
    gains: int
    fits: bool


def advice(made: Plan, phases: Collection[str] = ()) -> list[Change]:
    """Changes that gain something, largest first; those that alone make the run fit before all others.

    With `phases`, those of a training device in which memory ran out, what counts is the largest of them, and whether
    the plan says that the run fits doesn't.
    """

    def takes(plan: Plan) -> int:
        return max((phase.total for phase in plan.phases if phase.name in phases), default=0)

    found = []
    for setting, costs, changed in _changes(made):
        try:
            other = made.changed(changed)
        except InputError:  # the change contradicts another setting: not one to give
            continue
        gains = takes(made) - takes(other) if phases else made.peak.total - other.peak.total
        if gains > 0:
            found.append(Change(setting, costs, gains, other.verdict == "fits"))
    return sorted(found, key=lambda change: (not (phases or change.fits), -change.gains))


def _changes(made: Plan) -> Iterator[tuple[str, str, Settings]]:
    settings = made.settings
    trained, engine, layout = settings.trained, settings.engine, settings.layout

    def with_trained(**changed: object) -> Settings:
        return replace(settings, trained=replace(trained, **changed))  # type: ignore[arg-type]

    if trained.lora is None:
        dtype = "bfloat16" if made.card.bf16 else trained.dtype
        penalty = on_adapters(trained.penalty)
        moves = "" if penalty == trained.penalty else " algorithm.gradient_penalty_parameters=all"
        yield (
            f"model.lora.r={LORA_RANK} model.dtype={dtype}{moves}",
            "trains adapters instead of all weights",
            with_trained(lora=LORA_RANK, dtype=dtype, penalty=penalty),
        )
    if trained.dtype == "float32" and made.card.bf16:
        yield (
            "model.dtype=bfloat16",
            "weights and optimizer state lose precision: small updates are rounded away"
            if trained.lora is None
            else "frozen weights in the precision in which they were published",
            with_trained(dtype="bfloat16"),
        )
    if not trained.checkpointing:
        yield "trainer.gradient_checkpointing=true", "a forward pass more a step", with_trained(checkpointing=True)
    if trained.reference:
        yield "trainer.beta=0", "no reference model, no KL term", with_trained(reference=False)
    if trained.penalty is not None:
        yield "algorithm=grpo", "no penalty on the gradient's norm", with_trained(penalty=None)
        for setting, costs, penalty in _penalties(trained.penalty):
            yield setting, costs, with_trained(penalty=penalty)
    if layout.shards == 1 and layout.trainers > 1:
        yield _with_fsdp(settings)
    if engine.place == "colocate" and engine.kind == "vllm":
        if trained.offload == "none":
            yield (
                "memory.offload=optimizer",
                "its state travels to the host and back each generation",
                with_trained(offload="optimizer"),
            )
        if not engine.sleeps and made.card.kind != "cpu":
            yield (
                "memory.engine_sleep=true",
                "the engine's weights travel each generation",
                replace(settings, engine=replace(engine, sleeps=True)),
            )
        yield from _shares(made)
    yield from _batches(settings)


def _penalties(penalty: Penalty) -> Iterator[tuple[str, str, Penalty]]:
    """What makes GPRO's second gradient smaller."""
    if penalty.moves != "norms":
        yield (
            "algorithm.gradient_penalty_parameters=norms",
            "the penalty is on the norm of their gradient only",
            replace(penalty, moves="norms"),
        )
    if penalty.searches:
        yield (
            f"algorithm.{FIXED_RADIUS}",
            "a length that another run has found (gradient_penalty/radius) instead of looking for it",
            replace(penalty, searches=False),
        )
    if penalty.fraction < 1.0:
        yield (
            "algorithm.gradient_penalty_fraction=1",
            "all rows have a second pass",
            replace(penalty, fraction=1.0),
        )


def on_adapters(penalty: Penalty | None) -> Penalty | None:
    """The penalty of a training of adapters, which have no norms' weights: then of all."""
    return replace(penalty, moves="all") if penalty is not None and penalty.moves == "norms" else penalty


def sharded(trained: Trained) -> Penalty | None:
    """The penalty of a training with FSDP, whose mixed precision can't look for the radius: then with a number."""
    penalty = trained.penalty
    return replace(penalty, searches=False) if penalty is not None and trained.autocast else penalty


def _with_fsdp(settings: Settings) -> tuple[str, str, Settings]:
    trained, layout = settings.trained, settings.layout
    penalty = sharded(trained)
    words = 'trainer.fsdp="full_shard auto_wrap"' + ("" if penalty == trained.penalty else f" algorithm.{FIXED_RADIUS}")
    costs = f"weights travel between the {layout.trainers} devices in each pass"
    layout = replace(layout, shards=layout.trainers)
    return words, costs, replace(settings, trained=replace(trained, penalty=penalty), layout=layout)


def _shares(made: Plan) -> Iterator[tuple[str, str, Settings]]:
    """A share of the device that holds the weights and all sequences at their longest, and no more."""
    engine = made.settings.engine
    if engine.kv_cache is not None:
        return
    least = share_needed(made)
    if least < engine.share - 0.005:
        yield (
            f"memory.engine_share={least:.2f}",
            "the KV cache holds what is sampled at once, and nothing beyond",
            replace(made.settings, engine=replace(engine, share=least)),
        )


def _batches(settings: Settings) -> Iterator[tuple[str, str, Settings]]:
    batch = settings.batch
    budget = batch.budget or batch.micro_batch * batch.length
    if batch.budget is not None and budget // 2 >= batch.length:
        yield (
            f"trainer.max_tokens_per_batch={budget // 2}",
            "the same step in more passes",
            replace(settings, batch=replace(batch, budget=budget // 2)),
        )
    elif batch.budget is None and batch.micro_batch > 1:
        halved = replace(batch, micro_batch=batch.micro_batch // 2, accumulation=batch.accumulation * 2)
        yield (
            f"trainer.per_device_train_batch_size={halved.micro_batch} "
            f"trainer.gradient_accumulation_steps={halved.accumulation}",
            "the same step in more passes",
            replace(settings, batch=halved),
        )
    if batch.completion >= 64:
        shorter = replace(batch, completion=batch.completion // 2)
        yield (
            f"trainer.max_completion_length={shorter.completion}",
            "longer completions are cut off",
            replace(settings, batch=shorter),
        )


def share_needed(made: Plan) -> float:
    """The share of the device, to the next hundredth, that holds the engine's weights, one pass, and the KV cache of
    all sequences that are sampled at once at their longest."""
    batch, engine = made.settings.batch, made.engine
    sequences = made.settings.engine.sequences or batch.sampled
    width = {"float32": 4}.get(made.settings.engine.dtype, 2)
    cache = sequences * made.model.kv_bytes(batch.length, width, tensor_parallel=made.settings.engine.tensor_parallel)
    needed = engine.weights + engine.workspace + engine.graphs + cache
    return min(0.99, -(-needed * 100 // made.card.usable) / 100)


def largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest number from `least` to `most` that fits, where every smaller one does too; None where none does."""
    if not fits(least):
        return None
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least
