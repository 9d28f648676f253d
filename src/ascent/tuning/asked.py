"""What a tuning is of: the run's configuration, its model, its engine as configured, and its memory's plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ascent.config import RunConfig, settled
from ascent.config import file as config_file
from ascent.errors import InputError
from ascent.memory import plan
from ascent.memory.asked import named_config
from ascent.memory.config_json import read_model
from ascent.memory.engine_memory import SERVER_SHARE
from ascent.memory.from_config import settings_of, within_context
from ascent.memory.model import WIDTHS, Model
from ascent.memory.plan import Plan
from ascent.memory.settings import Settings
from ascent.models.folder import longest_context, model_folder
from ascent.rollout.engine import EngineSettings
from ascent.tuning.probe import Machine
from ascent.tuning.space import Needs, Point

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Asked:
    """The configuration, the model's folder, and a name for what is kept. `run` is the run whose completions give the
    lengths, where there is one."""

    config: RunConfig
    folder: Path
    name: str
    run: Path | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Configured:
    """The engine as the run would have it on this machine. `plan` is None where the model's dimensions aren't known."""

    settings: EngineSettings
    point: Point
    memory: Settings
    plan: Plan | None
    notes: tuple[str, ...]


def asked(what: str, overrides: Sequence[str], run: Path | None) -> Asked:
    """Read what the command was given. Raises InputError for a configuration or a model that can't be used."""
    file = named_config(Path(what))
    if file is not None:
        source = config_file.read(file, overrides)
    else:
        source = config_file.of_arguments({"model": {"path": what}}, overrides)
    config, notes = settled(source)
    if config.rollout.engine != "vllm":
        raise InputError(
            f"rollout.engine={config.rollout.engine}: what is tuned are vLLM's settings", "Set rollout.engine=vllm."
        )
    if config.rollout.server is not None:
        raise InputError(
            f"rollout.server={config.rollout.server!r} names servers that stand already, with the settings that they "
            "were started with",
            "Leave it out, and give what is found to `ascent serve` or to a run's own servers.",
        )
    is_run = file is not None and file.parent == Path(what)
    name = Path(what).stem if file is not None and not is_run else Path(what.replace(":", "-")).name
    folder = model_folder(config.model.path, config.model.revision)
    return Asked(config, folder, name, run or (Path(what) if is_run else None), tuple(notes))


def configured(asked: Asked, machine: Machine, longest_prompt: int) -> Configured:
    """The engine of a run with such prompts (tokens). Raises InputError for settings that contradict each other."""
    config = asked.config
    memory, _ = settings_of(config, 1, machine.kind)
    batch = replace(memory.batch, prompt=longest_prompt)
    memory = replace(memory, batch=batch)
    context = config.rollout.max_model_len or min(
        longest_context(asked.folder, trust_remote_code=config.model.trust_remote_code), batch.length
    )
    engine = memory.engine
    share = engine.share if engine.place == "colocate" else SERVER_SHARE
    sequences = engine.sequences or batch.sampled
    head = config.model.head_dtype == "float32" or bool(config.trainer.get("cast_lm_head_to_fp32"))
    settings = EngineSettings(
        model=str(asked.folder),
        dtype=engine.dtype,
        max_model_len=context,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(engine.batched_tokens, context),
        prefix_caching=config.rollout.prefix_caching,
        enforce_eager=engine.eager,
        engine_share=share,
        kv_cache_bytes=engine.kv_cache,
        trust_remote_code=config.model.trust_remote_code,
        speculative=config.rollout.speculative,
        speculative_tokens=config.rollout.speculative_tokens,
        head_dtype="float32" if head else None,
        block_size=config.rollout.block_size,
        chunked_prefill=config.rollout.chunked_prefill,
        threads=config.rollout.threads,
    )
    point = Point(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        prefix_caching=settings.prefix_caching,
        chunked_prefill=settings.chunked_prefill,
        enforce_eager=settings.enforce_eager,
        block_size=settings.block_size,
        kv_cache_mb=None if settings.kv_cache_bytes is None else settings.kv_cache_bytes // _MIB,
        engine_share=settings.engine_share,
        threads=settings.threads,
        replicas=engine.replicas,
        tensor_parallel=engine.tensor_parallel,
    )
    made, notes = _planned(asked, memory, machine)
    return Configured(settings, point, memory, made, notes)


def needs(configured: Configured) -> Needs:
    """What a generation of the run needs of its engine."""
    made, batch = configured.plan, configured.memory.batch
    longest = configured.settings.max_model_len
    shares = configured.memory.engine.place == "colocate"
    if made is None:
        return Needs(batch.sampled, longest, shares_device=shares)
    width = WIDTHS[configured.memory.engine.dtype]
    one = made.model.kv_bytes(longest, width, tensor_parallel=configured.memory.engine.tensor_parallel)
    cache = configured.memory.engine.kv_cache or made.engine.kv_cache
    return Needs(batch.sampled, longest, one, int(cache // one), shares_device=shares)


def fits(configured: Configured) -> Callable[[Point], bool]:
    """Whether the training with an engine of a point's settings fits by the plan; always where there is none."""
    made = configured.plan
    if made is None:
        return lambda point: True
    seen: dict[tuple[object, ...], bool] = {}
    shares = configured.memory.engine.place == "colocate"

    def answer(point: Point) -> bool:
        cache = None if point.kv_cache_mb is None else point.kv_cache_mb * _MIB
        own = (point.max_num_seqs, point.max_num_batched_tokens, point.enforce_eager, cache, point.engine_share)
        key = (*own, point.replicas, point.tensor_parallel)
        if key not in seen:
            engine = replace(
                configured.memory.engine,
                sequences=point.max_num_seqs,
                batched_tokens=point.max_num_batched_tokens,
                eager=point.enforce_eager,
                kv_cache=cache,
                share=point.engine_share if shares else configured.memory.engine.share,
                replicas=point.replicas,
                tensor_parallel=point.tensor_parallel,
            )
            seen[key] = _fits(made, replace(configured.memory, engine=engine))
        return seen[key]

    return answer


def fits_group(configured: Configured) -> Callable[[int, int], bool]:
    """Whether groups of such a size, trained on in passes of so many tokens, fit."""
    made, memory = configured.plan, configured.memory

    def answer(group: int, tokens: int) -> bool:
        batch = replace(memory.batch, group=group, budget=tokens)
        return made is None or _fits(made, replace(memory, batch=batch))

    return answer


def model_of(asked: Asked) -> Model | None:
    """The model's dimensions; None where its config doesn't give them."""
    try:
        return read_model(str(asked.folder))
    except InputError:
        return None


def _planned(asked: Asked, memory: Settings, machine: Machine) -> tuple[Plan | None, tuple[str, ...]]:
    try:
        model = read_model(str(asked.folder))
        return plan(model, machine.card, within_context(memory, model)), ()
    except InputError as error:
        return None, (f"memory isn't planned, so settings that don't fit are found by trying: {error.message}",)


def _fits(made: Plan, settings: Settings) -> bool:
    try:
        return made.changed(settings).verdict != "no"
    except InputError:  # a contradiction: tensor parallelism that doesn't divide the heads
        return False
