"""A comparison, and what was recorded, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascent.bench.regress.chance import FALSE_ALARM
from ascent.bench.regress.compare import Comparison, SampledResult, SpeedResult
from ascent.bench.regress.record import Head, Record
from ascent.bench.regress.tolerance import learned
from ascent.json_numbers import in_words

_SHOWN = 12  # changed prompts, unless all are asked for
_FIGURES = {"logp": "mean log-probability", "length": "length", "ended": "share that ended by itself"}
_UNITS = {"logp": " nats", "length": " tokens", "ended": ""}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What `ascent regress record` says. `bytes` is the file's size."""

    file: Path
    bytes: int
    record: Record

    good = True

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        head = asdict(self.record.head)
        tolerance = learned(self.record.prompts, self.record.head.dtype).to_json()
        counted = {"file": str(self.file), "bytes": self.bytes, "prompts": len(self.record.prompts)}
        return {"schema": "ascent.regress-recorded/1", **counted, "tolerance": tolerance, **head}

    def to_text(self) -> str:
        """For people."""
        head, tolerance = self.record.head, learned(self.record.prompts, self.record.head.dtype)
        lines = [
            f"{self.file}: {len(self.record.prompts)} prompts, {len(head.runs)} runs, {self.bytes / 1000:.0f} kB",
            f"  {_named(head)}",
            f"  tolerated later: {tolerance.mean:.2g} nats on average of a prompt, {tolerance.largest:.2g} of a token",
        ]
        if head.left_out:
            lines.append(f"  left out, longer than the context: {', '.join(head.left_out)}")
        others = max((run.others or 0.0 for run in head.runs), default=0.0)
        if others > 0.1:
            lines.append(f"  others used {others:.0%} of the processors meanwhile: its speed will not be compared")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Compared:
    """What `ascent regress compare` says."""

    comparison: Comparison
    everything: bool = False

    @property
    def good(self) -> bool:
        """See Comparison."""
        return self.comparison.good

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        found = self.comparison
        content = {
            "schema": "ascent.regress/1",
            "verdict": found.verdict,
            "old": asdict(found.old),
            "new": asdict(found.new),
            "environment": {name: list(both) for name, both in found.environment.items()},
            "tolerance": found.tolerance.to_json(),
            "prompts": [asdict(each) for each in found.prompts],
            "sampled": [asdict(each) for each in found.sampled],
            "speed": [asdict(each) for each in found.speed],
            "ignored": list(found.ignored),
            "missing": list(found.missing),
            "false_alarm": FALSE_ALARM,
        }
        return dict(in_words(content))

    def to_text(self) -> str:
        """For people."""
        found = self.comparison
        lines = [f"before: {_named(found.old)}", f"now:    {_named(found.new)}"]
        changed = [f"{name} {before} -> {after}" for name, (before, after) in found.environment.items()]
        lines += [f"differs: {', '.join(changed)}"] if changed else []
        lines += ["", *self._prompts(), *map(_sampled, found.sampled), *map(self._speed, found.speed), ""]
        return "\n".join([*lines, f"{found.verdict}"])

    def _prompts(self) -> Iterator[str]:
        found = self.comparison
        counts = Counter(each.verdict for each in found.prompts)
        verdicts = ", ".join(
            f"{counts[name]} {name}" for name in ("equal", "within tolerance", "changed") if counts[name]
        )
        yield f"{len(found.prompts)} prompts: {verdicts}"
        if found.missing:
            yield f"  in one of the two only: {', '.join(found.missing)}"
        finite = [each for each in found.prompts if each.mean == each.mean]
        if finite:
            mean = sum(each.mean for each in finite) / len(finite)
            largest = max(finite, key=lambda each: each.largest)
            yield (
                f"log-probabilities: {mean:.2g} nats apart on average, {largest.largest:.2g} at most ({largest.id}); "
                f"tolerated: {found.tolerance.mean:.2g} on a prompt's average, {found.tolerance.largest:.2g} of a token"
            )
        shown = [each for each in found.prompts if each.verdict == "changed"]
        for each in shown if self.everything else shown[:_SHOWN]:
            yield f"  {each.id}: {'; '.join(each.why)}"
        if len(shown) > _SHOWN and not self.everything:
            yield f"  and {len(shown) - _SHOWN} more (--all lists them)"
        for each in found.prompts:
            if each.verdict != "changed" and each.divergence is not None:
                yield f"  {each.id}: {each.divergence.in_words()}"

    def _speed(self, each: SpeedResult) -> str:
        ignored = " (ignored)" if each.figure in self.comparison.ignored else ""
        if each.was is None or each.now is None:
            return f"{each.figure}: unknown, {each.why}{ignored}"
        told = f"{_amount(each.figure, each.was)} -> {_amount(each.figure, each.now)} ({each.now / each.was - 1:+.1%})"
        bound = f"; a change of {each.bound:.0%} would be told" if each.bound is not None else ""
        return f"{each.figure}: {told}: {each.verdict}{', ' + each.why if each.why else ''}{bound}{ignored}"


def _sampled(each: SampledResult) -> str:
    tested = each.tested
    told = f"{_FIGURES[each.figure]} {tested.was:.3g} -> {tested.now:.3g}{_UNITS[each.figure]}"
    if tested.p is None:
        return f"sampling at {each.setting}: {told}: unknown, too few prompts for the test (at least 21)"
    power = f"; {tested.detectable:.2g} would be told" if tested.detectable is not None else ""
    return f"sampling at {each.setting}: {told}: {each.verdict} (p = {tested.p:.2g}{power})"


def _amount(figure: str, value: float) -> str:
    return f"{value:.0f} tokens/s" if figure == "speed" else f"{value / 2**20:.0f} MiB"


def _named(head: Head) -> str:
    engine = {"colocated": "vLLM in process", "transformers": "transformers", "service": "service"}[head.engine.kind]
    version = f" {head.vllm}" if head.vllm else ""
    return f"{head.model.name} on {engine}{version}, {head.dtype}, {len(head.runs)} runs, {head.made}"
