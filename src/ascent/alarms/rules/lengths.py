"""How long completions are, against what they may be."""

from __future__ import annotations

from ascent.alarms.alarm import Firing
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line
from ascent.alarms.rules.rule import Rule, percent
from ascent.alarms.sequential import Recent, Reference, Streak


class Length(Rule):
    """Completions are cut off, or grow, and nothing is passed more often for it."""

    name = "length"
    needs = ("completions/mean_length", "completions/clipped_ratio")
    least = 25
    CLIPPED, MORE, TIMES, GAIN, STEPS = 0.25, 0.15, 2.0, 0.02, 5

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._usual_length, self._usual_clipped, self._usual_passed = Reference(), Reference(), Reference()
        self._lengths, self._passed = Recent(10), Recent(10)
        self._cut, self._grown = Streak(), Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        length, clipped = (line.number(name) or 0.0 for name in self.needs)
        passed = line.number("pass_rate")
        for usual, value in ((self._usual_length, length), (self._usual_clipped, clipped)):
            usual.take(value)
        if passed is not None:
            self._usual_passed.take(passed)
            self._passed.take(passed)
        now = self._lengths.take(length).median
        before, cut_before = self._usual_length.value, self._usual_clipped.value
        if before is None or cut_before is None:
            return None
        cut = self._cut.take(clipped >= self.CLIPPED and clipped >= cut_before + self.MORE, line.step)
        grown = self._grown.take(now > self.TIMES * before and self._gain() < self.GAIN, line.step)
        if max(cut, grown) < self.STEPS:
            return None
        correlation = line.number("signals/length_reward_correlation")
        streak = self._cut if cut >= self.STEPS else self._grown
        return Firing(
            "warn",
            f"completions have {now:.0f} tokens (median of 10 steps), after {before:.0f}; {percent(clipped)} are cut "
            f"off, after {percent(cut_before)}"
            + (f"; within a group length and reward correlate by {correlation:.2f}" if correlation is not None else ""),
            streak.since,
            f"in {streak.length} steps in a row",
            {"length": now, "usual_length": before, "clipped_ratio": clipped, "usual_clipped_ratio": cut_before}
            | ({} if correlation is None else {"length_reward_correlation": correlation}),
        )

    def _gain(self) -> float:
        """How much more often tests are passed than at first; 0 where nobody tests."""
        before = self._usual_passed.value
        return 0.0 if before is None else self._passed.median - before


class Room(Rule):
    """`max_completion_length` is far above all real lengths: memory and context are kept for nothing."""

    name = "room"
    needs = ("completions/max_terminated_length", "completions/clipped_ratio")
    least = 30
    TIMES, GENERATIONS, LEAST_TOKENS = 4.0, 30, 256

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._longest, self._clipped = Recent(self.GENERATIONS), Recent(self.GENERATIONS)

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        longest, clipped = (line.number(name) or 0.0 for name in self.needs)
        self._longest.take(longest)
        self._clipped.take(clipped)
        allowed = self.facts.max_completion_length
        if allowed is None or allowed < self.LEAST_TOKENS or not self._longest.full or any(self._clipped.values):
            return None
        most = max(self._longest.values)
        if not most or allowed < self.TIMES * most:
            return None
        spare = allowed - most
        bytes_spare = spare * (self.facts.kv_bytes_per_token or 0) * (self.facts.sequences or 0)
        return Firing(
            "info",
            f"the longest of the completions of {self.GENERATIONS} generations has {most:.0f} tokens; "
            f"max_completion_length allows {allowed}"
            + (f", for which the KV cache of {self.facts.sequences} sequences needs {bytes_spare / 2**20:,.0f} MiB more"
               if bytes_spare else ""),
            line.step - self.GENERATIONS + 1,
            "counted, not estimated",
            {"longest": most, "max_completion_length": float(allowed), "kv_cache_bytes": bytes_spare},
        )  # fmt: skip

    def not_judged(self) -> str | None:
        """See Rule."""
        if self.facts.max_completion_length is None:
            return "max_completion_length is not known"
        return super().not_judged()
