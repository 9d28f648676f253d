"""What `ascent bench --training` says, for a person and for a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from ascent.bench.training.applying import Applied, fragment
from ascent.bench.training.changes import Change
from ascent.bench.training.measured import PHASES, Measured

SCHEMA = "ascent.bench.training/1"


@dataclass(frozen=True, slots=True)
class TrainingBench:
    """A measured step, what should make it shorter (the most gained first), and what came of trying it."""

    device: str
    processes: int
    found: Measured
    changes: Sequence[Change]
    applied: Applied | None = None

    @property
    def good(self) -> bool:
        """Whether what was asked for came to its end: a change that was tried ran."""
        return self.applied is None or self.applied.verdict != "failed"

    @property
    def fragment(self) -> Mapping[str, Mapping[str, Any]]:
        """The part of a configuration that makes the training faster; empty where nothing was shown to."""
        shown = self.applied is not None and self.applied.verdict == "faster"
        return fragment(self.applied.change.settings) if shown and self.applied is not None else {}

    def to_text(self) -> str:
        """For a person."""
        parts = [self._table(), self._held_by(), self._changes()]
        if self.applied is not None:
            parts.append(_applied(self.applied))
        if self.fragment:
            parts.append(f"The part of the configuration:\n\n{self.yaml()}".rstrip())
        return "\n\n".join(parts)

    def yaml(self) -> str:
        """The fragment as a part of a configuration file."""
        return yaml.safe_dump(self.fragment, sort_keys=False)

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        applied = self.applied
        return {
            "schema": SCHEMA,
            "device": self.device,
            "processes": self.processes,
            **asdict(self.found),
            "bound": self.found.bound,
            "held_by": self.found.held_by,
            "changes": [{**asdict(change), "expected": change.expected} for change in self.changes],
            "applied": None if applied is None else {**asdict(applied), "verdict": applied.verdict},
            "fragment": self.fragment,
        }

    def _table(self) -> str:
        found, wide = self.found, max(map(len, PHASES.values()))
        lines = [
            f"A step takes {found.step:.2f} s (mean of {found.steps}, {self.processes} x {self.device}): "
            f"{found.samples:.0f} completions, {found.tokens / found.step:,.0f} tokens/s",
            f"  {'':<{wide}}  seconds   bound",
        ]
        for name, what in PHASES.items():
            lines.append(f"  {what:<{wide}}  {found.phases[name]:7.3f} {found.floors[name]:7.3f}")
        lines.append(f"  {'in all':<{wide}}  {found.step:7.3f} {found.bound:7.3f}")
        lines.append(f"It takes {found.to_bound} times its bound (95 %), in which sampling is taken as it is.")
        if found.silent:
            lines.append(f"{found.silent:.0%} of the completions teach nothing: their groups are scored alike.")
        return "\n".join(lines)

    def _held_by(self) -> str:
        found, name = self.found, self.found.held_by
        if name is not None:
            above = found.phases[name] - found.floors[name]
            text = (
                f"What holds the step back: {PHASES[name]}, {above:.3f} s ({above / found.step:.0%}) above its bound."
            )
        else:
            text = "Nothing in the step is far above its bound."
        largest = found.largest
        text += f" Most of it is {PHASES[largest]} ({found.phases[largest] / found.step:.0%})."
        if largest == "generate":
            text += " `ascent tune` looks for the engine's fastest settings."
        return text

    def _changes(self) -> str:
        if not self.changes:
            return "What to change first: none of the settings known here should gain anything."
        lines = ["What to change first, by what it should gain of a step:"]
        for change in self.changes:
            lines.append(f"- {change.words}: {_gain(change, self.found.step)}. {_sentence(change.why)}")
            if change.alters:
                lines.append(f"    It changes the training, too: {change.alters}.")
        return "\n".join(lines)


def _gain(change: Change, step: float) -> str:
    if not change.least:
        return f"up to {change.most:.3f} s ({change.most / step:.0%})"
    return f"{change.least:.3f} to {change.most:.3f} s ({change.least / step:.0%} to {change.most / step:.0%})"


def _applied(applied: Applied) -> str:
    change = applied.change
    if applied.faster is None:
        return f"Tried {change.words}: the training didn't run with it. {_sentence(applied.failed)}"
    turns = ", ".join(f"{a:.2f} and {b:.2f} s" for a, b in zip(applied.before, applied.after, strict=True))
    expected = applied.before[0] / max(applied.before[0] - change.expected, 1e-9)
    told = {
        "faster": "It makes a step faster",
        "slower": "It makes a step slower; leave it out",
        "no difference": "So few steps show no difference",
    }[applied.verdict]
    return (
        f"Tried {change.words}, in turns without it and with it: {turns} a step.\n"
        f"{told}: {applied.faster} times as fast (95 %), {expected:.2f} expected."
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
