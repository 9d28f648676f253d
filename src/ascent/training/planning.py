"""A run's memory, planned before anything is loaded: what is refused, what is warned of, what is set by it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent import devices
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.memory import calibration
from ascent.memory.advice import advice
from ascent.memory.cards import Card, card, exactly
from ascent.memory.config_json import read_model
from ascent.memory.from_config import settings_of, within_context
from ascent.memory.picture import size, verdict_line
from ascent.memory.plan import Plan, plan
from ascent.memory.recommended import tokens_that_fit
from ascent.memory.settings import balances

_CHANGES_SHOWN = 4
_CPU_RESERVE = 2**28  # vLLM's and other packages' code that is loaded after the run has begun
_MOST_TIMES = 4  # a pass of `max_tokens_per_batch: auto` is at most so many micro-batches


def plan_run(config: RunConfig, args: Any, folder: Path, say: Callable[[str], None]) -> Plan | None:
    """The plan of a run on this process's device; None, with a sentence, for a model whose dimensions aren't known.

    Raises InputError for a run that doesn't fit even at the lower end of the plan's error, unless `memory.check` says
    to go on.
    """
    if args.plain or config.memory.check == "off":
        return None
    here, processes = this_card(), args.world_size
    try:
        model = read_model(str(folder))
        settings, _ = settings_of(config, processes, here.kind)
        settings = within_context(settings, model)
        made = plan(model, here, settings, calibration=calibration.of_this_machine(here.name))
    except InputError as error:
        say(f"note: memory isn't planned: {error.message}")
        return None
    if made.verdict == "fits":
        say(f"memory: {verdict_line(made)}")
        return made
    changes = [f"{change.setting} (gains {size(change.gains)})" for change in advice(made)[:_CHANGES_SHOWN]]
    told = f"memory: {verdict_line(made)}"
    if made.verdict == "close" or config.memory.check == "warn":
        say(f"warning: {told}")
        for change in changes:
            say(f"  what would gain most: {change}")
        return made
    raise InputError(
        told,
        "\n  ".join(["What gains most:", *(f"- {change}" for change in changes), "Or insist with --force."]),
    )


def this_card() -> Card:
    """The device of this process, with the memory that it really has. On CPU the host's, shared by the processes of
    this machine."""
    kind, use = devices.kind(), devices.use()
    if kind == "cpu":
        beside = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        host = exactly(_host_available() // beside, "cpu")
        return replace(host, name="this machine's memory", reserve=_CPU_RESERVE)
    try:
        found = card(devices.name())
    except InputError:
        return replace(exactly(use.total_bytes, kind), name=devices.name(), bf16=devices.supports_bf16())
    if abs(found.usable - use.total_bytes) < found.usable // 20:
        return replace(found, usable=use.total_bytes)
    return replace(exactly(use.total_bytes, kind), name=devices.name(), bf16=devices.supports_bf16())


def cap_allocator(config: RunConfig, made: Plan | None) -> None:
    """Keep `memory.trainer_gb`: with the engine in this process its share comes on top, since both use one allocator.
    Raises InputError where the device can't."""
    cap = config.memory.trainer_gb
    if cap is None:
        return
    engine = 0
    if config.rollout.mode == "colocate" and config.rollout.engine == "vllm":
        engine = made.engine.total if made is not None else int(config.memory.engine_share * devices.use().total_bytes)
    devices.limit_allocator(int(cap * 2**30) + engine)


def take_tokens(args: Any, made: Plan | None) -> Plan | None:
    """Set `max_tokens_per_batch` in `args` where it is `auto` and the plan says how many fit; the plan with as many."""
    tokens = tokens_by_memory(args, made)
    if made is None or tokens is None:
        return made
    args.max_tokens_per_batch = tokens
    return made.changed(replace(made.settings, batch=replace(made.settings.batch, budget=tokens)))


def tokens_by_memory(args: Any, made: Plan | None) -> int | None:
    """The tokens of a pass for `max_tokens_per_batch: auto` on an accelerator: as many as the plan says fit, at most a
    few micro-batches'. None where a plan says nothing, or for another setting."""
    if made is None or made.card.kind == "cpu" or args.max_tokens_per_batch != "auto":
        return None
    if balances(made.model, made.settings.trained):  # micro-batches stay whole
        return None
    fits = tokens_that_fit(made)
    batch = made.settings.batch
    return None if fits is None else min(fits, _MOST_TIMES * batch.micro_batch * batch.length)


def _host_available() -> int:
    """Bytes of the host that a new program may take, by the kernel's estimate and the control group's limit."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else "max"
    return min(available, int(text)) if text.isdigit() else available
