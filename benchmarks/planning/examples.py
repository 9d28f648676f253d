"""The worked examples of docs/memory.md: tables of what the plan says."""

from __future__ import annotations

from dataclasses import replace

from ascent.memory import Batch, Engine, Layout, Settings, Trained, card, plan, read_model
from ascent.memory.layouts import layouts
from ascent.memory.picture import size

SEVEN = "Qwen/Qwen2.5-7B-Instruct"
_BATCH = Batch(prompt=512, completion=1024, micro_batch=8, accumulation=8)
_MODELS = (
    (SEVEN, 8),
    ("baichuan-inc/Baichuan2-13B-Chat", 8),
    ("Qwen/Qwen2.5-14B-Instruct", 8),
    ("Qwen/Qwen2.5-14B-Instruct", 16),
    ("Qwen/Qwen2.5-32B-Instruct", 8),
    ("Qwen/Qwen2.5-32B-Instruct", 32),
    ("Qwen/Qwen2.5-72B-Instruct", 8),
    ("Qwen/Qwen2.5-72B-Instruct", 16),
    ("Qwen/Qwen3-30B-A3B", 8),
    ("Qwen/Qwen3-30B-A3B", 32),
)


def anchor_rows() -> list[str]:
    """A 7B model on one card of 64 GB, and on eight."""
    share = Engine(share=0.45)
    settings = {
        "all weights, float32": Settings(Trained(), _BATCH, share),
        "all weights, bfloat16": Settings(Trained(dtype="bfloat16"), _BATCH, share),
        "LoRA of rank 16, bfloat16": Settings(Trained(dtype="bfloat16", lora=16), _BATCH, share),
        "all weights over 8 cards (FSDP), share 0.35": Settings(
            Trained(), replace(_BATCH, micro_batch=4), Engine(share=0.35), Layout(8, 8)
        ),
    }
    rows = []
    for what, each in settings.items():
        made = plan(SEVEN, "910B3", each)
        over = f", {size(made.lower - made.card.usable)} too much at least" if made.verdict == "no" else ""
        answer = {"no": "no", "close": "close", "fits": "yes"}[made.verdict]
        rows.append(f"| {what} | {size(made.lower)} to {size(made.upper)} | {answer}{over} |")
    return rows


def worked_rows() -> list[str]:
    """The first layout of each model on so many cards."""
    here = card("910B3")
    settings = Settings(batch=replace(_BATCH, micro_batch=4))
    rows = []
    for name, cards in _MODELS:
        found = layouts(read_model(name), here, cards, settings)
        if not found:
            rows.append(f"| {name} | {cards} | none | |")
            continue
        made = found[0].plan
        close = ", close" if made.verdict == "close" else ""
        rows.append(f"| {name} | {cards} | {found[0].what} | {made.peak.name}: {size(made.peak.total)}{close} |")
    return rows


if __name__ == "__main__":
    print("\n".join([*anchor_rows(), "", *worked_rows()]))
