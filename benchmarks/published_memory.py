"""The memory that others published, beside what the plan says: `python benchmarks/published_memory.py` prints the table
of docs/memory.md. Takes a second and needs no torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent.memory import Batch, Engine, Layout, Settings, Trained, card, plan, read_model
from ascent.memory.cards import GIB
from ascent.memory.engine_memory import engine_memory

PHASES = ("training", "optimizer step")
FIGURES = Path(__file__).with_name("planning") / "published.toml"


def figures() -> list[dict[str, Any]]:
    """All published figures with their settings."""
    found: list[dict[str, Any]] = tomllib.loads(FIGURES.read_text("utf-8"))["figure"]
    return found


def predicted(figure: Mapping[str, Any]) -> float:
    """GiB, as the plan has it without any calibration."""
    model, kind = read_model(figure["model"]), figure["kind"]
    settings = settings_of(figure)
    parallel = settings.engine.tensor_parallel
    if kind == "weights":
        return model.engine_parameters(parallel) * 2 / GIB
    if kind == "tokens":
        return model.kv_bytes(figure["tokens"], tensor_parallel=parallel) / GIB
    here = card(figure["device"])
    if kind == "cache":
        on_its_own = replace(settings, engine=replace(settings.engine, place="server"))
        return engine_memory(model, here, on_its_own).kv_cache / GIB
    if kind == "engine card":
        return (figure["share"] * here.usable + here.reserve + here.capacity - here.usable) / GIB  # as npu-smi sees it
    peak = _tensors(model, here, settings)
    if kind == "difference":
        more = replace(settings, layout=Layout(figure["more_shards"], figure["more_shards"]))
        return peak - _tensors(model, here, more)
    return peak


def _tensors(model: Any, here: Any, settings: Settings) -> float:
    """GiB of tensors at the peak: what allocators count, without context and communication."""
    made = plan(model, here, settings)
    beside = ("reserve", "communication", "transfer")
    return (
        max(sum(size for term, size in made.phase(name).terms.items() if term not in beside) for name in PHASES) / GIB
    )


def settings_of(figure: Mapping[str, Any]) -> Settings:
    """The plan's settings of a published figure."""
    shards, length = figure.get("shards", 1), figure.get("length", 2048)
    return Settings(
        Trained(
            dtype=figure.get("dtype", "float32"),
            lora=figure.get("lora"),
            checkpointing=figure.get("checkpointing", True),
            logits=figure.get("logits", "tiled"),
        ),
        Batch(1, length - 1, figure.get("sequences", 1), group=1, budget=None, shared_prompt=False),
        Engine(
            kind="vllm",
            place="elsewhere",
            sequences=figure.get("sequences"),
            batched_tokens=figure.get("batched_tokens", 4096),
            tensor_parallel=figure.get("tensor_parallel", 1),
        ),
        Layout(shards, shards),
    )


def table() -> list[str]:
    """Lines of markdown."""
    lines = ["| | published | planned | off | |", "|---|---|---|---|---|"]
    for figure in figures():
        said, published = predicted(figure), figure["published"]
        source = figure["source"].split(", ")
        link = f"[{source[0].removeprefix('https://github.com/')}]({source[0]}){', '.join(['', *source[1:]])}"
        assumed = f"; {figure['assumed']}" if "assumed" in figure else ""
        lines.append(
            f"| {figure['what']} | {published:.2f} | {said:.2f} | {said / published - 1:+.1%} | {link}{assumed} |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
