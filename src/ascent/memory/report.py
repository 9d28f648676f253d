"""What `ascent plan` says: the answer, the bars, the settings that fit, and what to change first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ascent.memory.advice import Change, advice
from ascent.memory.layouts import Choice, layouts
from ascent.memory.picture import bars, size, verdict_line
from ascent.memory.plan import Plan
from ascent.memory.recommended import Recommended, recommended

_LAYOUTS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Report:
    """A plan with what follows from it. `choices` are layouts of all cards, where these were asked for."""

    plan: Plan
    recommended: Recommended
    changes: tuple[Change, ...]
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    asked_for_layouts: bool

    def to_text(self) -> str:
        """For a terminal."""
        made = self.plan
        lines = [*(f"note: {note}" for note in self.notes), _head(made), "", *bars(made), "", verdict_line(made), ""]
        lines += _engine_lines(made) + _recommended_lines(self.recommended, made) + _change_lines(self.changes, made)
        if self.asked_for_layouts:
            lines += _choice_lines(self.choices, made)
        elif made.settings.layout.cards == 1 and made.verdict != "fits":
            lines.append("over several cards: --cards 8 shows which layouts fit")
        return "\n".join(lines).rstrip()

    def to_json(self) -> dict[str, Any]:
        """For programs: schema `ascent.plan/1`, sizes in bytes."""
        return {
            "schema": "ascent.plan/1",
            **self.plan.to_json(),
            "recommended": asdict(self.recommended),
            "changes": [asdict(change) for change in self.changes],
            "layouts": [
                {"what": choice.what, "settings": list(choice.words), **_short(choice.plan)} for choice in self.choices
            ],
            "notes": list(self.notes),
        }


def report(made: Plan, notes: list[str], *, all_layouts: int = 0) -> Report:
    """The report of a plan; with `all_layouts` cards also which layouts of them fit."""
    choices = layouts(made.model, made.card, all_layouts, made.settings) if all_layouts else []
    if choices and made.settings.layout.cards != all_layouts:
        made = choices[0].plan
        notes = [*notes, f"shown for {choices[0].what}"]
    return Report(made, recommended(made), tuple(advice(made)), tuple(choices), tuple(notes), bool(all_layouts))


def _short(made: Plan) -> dict[str, Any]:
    return {"verdict": made.verdict, "peak": made.peak.total, "lower": made.lower, "upper": made.upper}


def _head(made: Plan) -> str:
    model, trained, batch, layout = made.model, made.settings.trained, made.settings.batch, made.settings.layout
    count = f"{_many(model.parameters)} parameters"
    if model.experts is not None:
        count += f", {_many(model.active_parameters)} of them for a token"
    how = "all weights" if trained.lora is None else f"LoRA of rank {trained.lora}"
    if trained.penalty is not None:
        how += ", with GPRO's second gradient,"
    where = f"{layout.trainers} training devices" if layout.trainers > 1 else "one training device"
    if layout.shards > 1:
        where += f" that hold the policy in {layout.shards} pieces"
    if layout.servers:
        where += f", {layout.servers} more that sample"
    return (
        f"{model.name}: {count}, {made.model.kv_bytes_per_token() / 1024:g} KiB of keys and values a token\n"
        f"{how} in {trained.dtype}, {trained.optimizer}; {batch.micro_batch} x {batch.accumulation} sequences of "
        f"{batch.prompt} + {batch.completion} tokens; {where}"
    )


def _many(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e8 else f"{number / 1e6:.2f} million"


def _engine_lines(made: Plan) -> list[str]:
    engine = made.engine
    if not engine.total:
        return []
    sequences = engine.kv_tokens // made.settings.batch.length
    return [
        f"the engine takes {size(engine.total)}: weights {size(engine.weights)}, one pass {size(engine.workspace)}, "
        f"KV cache {size(engine.kv_cache)} = {engine.kv_tokens} tokens, {sequences} sequences at their longest",
        "",
    ]


def _recommended_lines(found: Recommended, made: Plan) -> list[str]:
    words = []
    if found.engine_share is not None:
        words.append(f"memory.engine_share={found.engine_share:g}")
    if found.sleep:
        words.append("memory.engine_sleep=true")
    if found.max_num_seqs is not None and made.settings.engine.kind == "vllm":
        words.append(f"rollout.max_num_seqs={found.max_num_seqs}")
        words.append(f"rollout.max_num_batched_tokens={found.max_num_batched_tokens}")
    if found.max_tokens_per_batch is not None:
        words.append(f"trainer.max_tokens_per_batch={found.max_tokens_per_batch}")
    if found.max_tokens_per_batch is None:
        return []
    return ["settings that fit this card:", f"  {' '.join(words)}", ""]


def _change_lines(changes: tuple[Change, ...], made: Plan) -> list[str]:
    if not changes or made.verdict == "fits":
        return []
    lines = ["what to change first, and what it gains at the peak:"]
    for change in changes:
        fits = "  fits with this alone" if change.fits else ""
        lines.append(f"  {size(change.gains):>10}  {change.setting}: {change.costs}{fits}")
    return [*lines, ""]


def _choice_lines(choices: tuple[Choice, ...], made: Plan) -> list[str]:
    if not choices:
        return ["no layout of these cards fits: take more cards, shorter sequences, or a smaller model"]
    fit = "fit" if choices[0].plan.verdict == "fits" else "may fit, but are close"
    lines = [f"layouts that {fit}, the one with the least traffic first:"]
    for choice in choices[:_LAYOUTS_SHOWN]:
        lines.append(f"  {choice.what}: {size(choice.plan.peak.total)} of {size(made.card.usable)}")
        lines.append(f"    {' '.join(choice.words)}")
    return lines
