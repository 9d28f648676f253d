"""A record and a later one -> equal, within tolerance or changed: each prompt, the sampling, speed and memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ascent.bench.regress.chance import Tested, over_prompts, over_runs
from ascent.bench.regress.greedy import Divergence, common_length, first_divergence
from ascent.bench.regress.measure import FIGURES
from ascent.bench.regress.plan import SAMPLINGS, Question
from ascent.bench.regress.record import Head, PromptRecord, Record
from ascent.bench.regress.tolerance import Tolerance, learned
from ascent.errors import InputError

Verdict = Literal["equal", "within tolerance", "changed", "better", "unknown"]
# What days and starts differ by beyond the noise within a record: less is never told.
_LEAST_SPEED, _LEAST_MEMORY = 0.10, 0.02
_BLIND = 1.0  # a test that would not see twice as much is none
_BUSY = 0.10  # of the machine's processors: beside others that use more, speed says nothing


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt. `mean` and `largest` are |differences| of log-probabilities in nats; `why` says what changed."""

    id: str
    verdict: Verdict
    mean: float
    largest: float
    divergence: Divergence | None
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SampledResult:
    """One figure (`measure.FIGURES`) of one sampling setting, over prompts."""

    setting: str
    figure: str
    verdict: Verdict
    tested: Tested


@dataclass(frozen=True, slots=True)
class SpeedResult:
    """`speed` in tokens/s or `memory` in bytes. `bound` is the change, as a share, from which on one is told."""

    figure: str
    verdict: Verdict
    was: float | None
    now: float | None
    bound: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. `environment` has what differs: name -> before, after. `ignored` figures don't count.
    `missing` are ids of prompts that only one of the two has."""

    old: Head
    new: Head
    tolerance: Tolerance
    prompts: tuple[PromptResult, ...]
    sampled: tuple[SampledResult, ...]
    speed: tuple[SpeedResult, ...]
    environment: Mapping[str, tuple[str, str]]
    ignored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst that counts; of speed and memory only a change for the worse does."""
        outputs = [*(each.verdict for each in self.prompts), *(each.verdict for each in self.sampled)]
        figures = [each.verdict for each in self.speed if each.figure not in self.ignored]
        if "changed" in outputs or "changed" in figures:
            return "changed"
        return "equal" if set(outputs) <= {"equal", "unknown"} else "within tolerance"

    @property
    def good(self) -> bool:
        """Whether nothing changed for the worse."""
        return self.verdict != "changed"


def compare(
    old: Record, new: Record, tokenized: Mapping[str, Question] | None = None, ignored: Sequence[str] = ()
) -> Comparison:
    """Compare records of the same prompts. `tokenized` is what the tokenizer makes of them now, where it was asked.
    Raises InputError when they were not asked the same."""
    if old.head.asked != new.head.asked:
        raise InputError(
            "the two records were not asked the same: other numbers or lengths of completions, or another seed",
            "Compare the older one with this version: ascent regress compare FILE",
        )
    tolerance = learned(old.prompts, old.head.dtype)
    later = {prompt.id: prompt for prompt in new.prompts}
    both = [(prompt, later[prompt.id]) for prompt in old.prompts if prompt.id in later]
    if not both:
        raise InputError("the two records have no prompt in common")
    for before, now in both:
        if before.prompt() != now.prompt():
            raise InputError(f"prompt {before.id} is another text in the second record")
    return Comparison(
        old=old.head,
        new=new.head,
        tolerance=tolerance,
        prompts=tuple(_prompt(before, now, tolerance, (tokenized or {}).get(before.id)) for before, now in both),
        sampled=tuple(_sampled(both, old.head, new.head)),
        speed=(_speed(old.head, new.head), _memory(old.head, new.head)),
        environment=_environment(old.head, new.head),
        ignored=tuple(ignored),
        missing=tuple(sorted({prompt.id for prompt in old.prompts} ^ set(later))),
    )


def _prompt(old: PromptRecord, new: PromptRecord, tolerance: Tolerance, tokenized: Question | None) -> PromptResult:
    asked_now = tokenized or new.question()
    why = _tokens_differ(old, asked_now)
    if (old.prompt_ids, old.continuation_ids) != (new.prompt_ids, new.continuation_ids):
        return PromptResult(old.id, "changed", math.nan, math.nan, None, tuple(why))
    mean, largest = _differences(old, new)
    if not (mean <= tolerance.mean and largest <= tolerance.largest):  # also where one is not a number
        why.append(f"log-probabilities differ by {mean:.2g} on average, {largest:.2g} at most")
    elif not new.noise_largest <= tolerance.largest:
        why.append(f"log-probabilities differ by {new.noise_largest:.2g} between runs of the new version")
    divergence = first_divergence(old, new, tolerance.near_tie)
    if divergence is not None and not divergence.near_tie:
        why.append(divergence.in_words())
    same_bits = set(new.digests) <= set(old.digests)
    verdict: Verdict = "changed" if why else "equal" if same_bits and divergence is None else "within tolerance"
    return PromptResult(old.id, verdict, mean, largest, divergence, tuple(why))


def _tokens_differ(old: PromptRecord, now: Question) -> list[str]:
    """What the tokenizer makes otherwise."""
    pairs = (("prompt", old.prompt_ids, now.prompt_ids), ("continuation", old.continuation_ids, now.continuation_ids))
    return [
        f"the tokenizer makes other tokens of the {name}, from token {common_length(before, after)} on"
        for name, before, after in pairs
        if before != after
    ]


def _differences(old: PromptRecord, new: PromptRecord) -> tuple[float, float]:
    """Mean and largest |difference|, of the continuation and what both references have in common."""
    count = len(old.continuation_ids) + common_length(old.reference, new.reference)
    differences = [abs(a - b) for a, b in zip(old.logps[:count], new.logps[:count], strict=True)]
    if any(map(math.isnan, differences)):
        return math.nan, math.nan
    return statistics.fmean(differences), max(differences)


def _sampled(both: Sequence[tuple[PromptRecord, PromptRecord]], old: Head, new: Head) -> list[SampledResult]:
    """Of equally many runs of each."""
    runs = min(len(old.runs), len(new.runs))
    found = []
    for setting in SAMPLINGS:
        for figure in FIGURES:
            pairs = [(before.sampled[setting][figure], now.sampled[setting][figure]) for before, now in both]
            variances = [(before.variance + now.variance) / (runs * old.asked.samples) for before, now in pairs]
            tested = over_prompts(
                [statistics.fmean(before.means[:runs]) for before, _ in pairs],
                [statistics.fmean(now.means[:runs]) for _, now in pairs],
                math.sqrt(math.fsum(variances)) / len(pairs),
            )
            found.append(SampledResult(setting, figure, _of_sampling(tested), tested))
    return found


def _of_sampling(tested: Tested) -> Verdict:
    if tested.p is None:
        return "unknown"
    return "changed" if tested.differs else "equal" if tested.was == tested.now else "within tolerance"


def _speed(old: Head, new: Head) -> SpeedResult:
    was, now = ([run.tokens_per_second for run in head.runs] for head in (old, new))
    for name, head in (("the record was made", old), ("it was measured now", new)):
        others = max((run.others or 0.0 for run in head.runs), default=0.0)
        if others > _BUSY:
            why = f"when {name}, others used {others:.0%} of the processors"
            return SpeedResult("speed", "unknown", _middle(was), _middle(now), None, why)
    if other := _other_place(old, new):
        return SpeedResult("speed", "unknown", _middle(was), _middle(now), None, other)
    return _over_runs("speed", was, now, _LEAST_SPEED, more_is_better=True)


def _memory(old: Head, new: Head) -> SpeedResult:
    was, now = ([float(run.memory) for run in head.runs if run.memory] for head in (old, new))
    if not was or not now:
        return SpeedResult("memory", "unknown", _middle(was), _middle(now), None, "it can't be seen from here")
    if other := _other_place(old, new):
        return SpeedResult("memory", "unknown", _middle(was), _middle(now), None, other)
    return _over_runs("memory", was, now, _LEAST_MEMORY, more_is_better=False)


def _other_place(old: Head, new: Head) -> str:
    """Why two figures are not of the same thing; "" where they are."""
    if old.engine.kind != new.engine.kind:
        return "measured of different engines"
    return "measured on different devices" if old.environment.get("device") != new.environment.get("device") else ""


def _over_runs(
    figure: str, was: Sequence[float], now: Sequence[float], least: float, *, more_is_better: bool
) -> SpeedResult:
    tested = over_runs(was, now)
    if tested.p is None or tested.detectable is None:
        return SpeedResult(figure, "unknown", tested.was, tested.now, None, "too few runs: record and compare 5")
    bound = max(least, tested.detectable)
    if bound > _BLIND:
        why = f"{len(was)} and {len(now)} runs that differ so much show no change of less than {bound:.0%}: make more"
        return SpeedResult(figure, "unknown", tested.was, tested.now, None, why)
    ratio = tested.now / tested.was
    if not tested.differs or max(ratio, 1 / ratio) <= 1 + bound:
        verdict: Verdict = "equal" if ratio == 1 else "within tolerance"
    else:
        verdict = "better" if (ratio > 1) == more_is_better else "changed"
    return SpeedResult(figure, verdict, tested.was, tested.now, bound, "")


def _middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _environment(old: Head, new: Head) -> dict[str, tuple[str, str]]:
    """What differs, the engine's own settings included."""
    sides = [
        {"engine": head.engine.kind, "dtype": head.dtype, "vLLM": head.vllm, **head.environment} for head in (old, new)
    ]
    before, after = sides
    return {
        name: (before.get(name, "-"), after.get(name, "-"))
        for name in dict.fromkeys([*before, *after])
        if before.get(name, "-") != after.get(name, "-")
    }
