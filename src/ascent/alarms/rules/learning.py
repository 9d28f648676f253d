"""Is anything learned, and is it kept? Rules about signal, collapse and falling rewards."""

from __future__ import annotations

from collections import deque

from ascent.alarms.alarm import Firing, Level
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line
from ascent.alarms.rules.rule import FIRST_STEP, Rule, percent
from ascent.alarms.sequential import Recent, Reference, Streak, change


class NoSignal(Rule):
    """Groups whose completions are all scored alike teach nothing.

    Where all of them pass, the tasks are learned, which is no fault until nothing else is left.
    """

    name = "no-signal"
    needs = ("frac_reward_zero_std",)
    least = 3
    hard = True
    SHARE, GENERATIONS, LEAST_GROUPS = 0.7, 5, 100
    ALL_GENERATIONS, ALL_GROUPS, SILENT_GENERATIONS = 3, 30, 10

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._recent: deque[tuple[float, float, float]] = deque()  # (silent, passing, groups) of each generation
        self._all, self._all_groups = Streak(), 0.0
        self._most = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        silent, passing, groups = self._counts(line)
        self._recent.append((silent, passing, groups))
        while len(self._recent) > self.GENERATIONS and self._groups() - self._recent[0][2] >= self.LEAST_GROUPS:
            self._recent.popleft()
        everything = self._all.take(silent >= groups, line.step)
        self._all_groups = self._all_groups + groups if everything else 0.0
        all_silent, all_passing, of = (sum(column) for column in zip(*self._recent, strict=True))
        share, passing_share = all_silent / of, all_passing / max(all_silent, 1e-9)
        enough = len(self._recent) >= self.GENERATIONS and of >= self.LEAST_GROUPS
        most = self._most.take(enough and share >= self.SHARE, line.step)
        learned = passing_share > 0.5
        level: Level | None = None
        if everything >= (self.SILENT_GENERATIONS if learned else self.ALL_GENERATIONS) and (
            self._all_groups >= self.ALL_GROUPS or everything >= self.SILENT_GENERATIONS
        ):
            level = "warn" if learned else "critical"
        elif most and line.step >= FIRST_STEP:
            level = "info" if learned else "warn"
        if level is None:
            return None
        groups_told = f"no group of the last {everything} generations teaches anything" if everything else ""
        return Firing(
            level,
            (groups_told or f"{percent(share)} of the last {of:.0f} groups teach nothing")
            + ": all completions of a prompt are scored alike"
            + (f" ({percent(passing_share)} of these groups pass as a whole)" if self._knows(line) else ""),
            self._all.since if everything else self._most.since,
            "counted, not estimated",
            {"share": share, "all_pass_share": passing_share, "groups": of, "generations_without_any": everything},
        )

    def _counts(self, line: Line) -> tuple[float, float, float]:
        """Groups without signal, those of them that pass, and all. Runs of earlier releases have TRL's share alone: the
        rewards of their groups' own tasks are not known."""
        groups, silent = line.number("signals/groups"), line.number("signals/groups_without_signal")
        if not groups or silent is None:
            share = line.number("frac_reward_zero_std") or 0.0
            return share, share if line.number("pass_rate") == 1 else 0.0, 1.0
        return silent, line.number("signals/groups_all_pass") or 0.0, groups

    def _groups(self) -> float:
        return sum(groups for _, _, groups in self._recent)

    def _knows(self, line: Line) -> bool:
        return line.has("signals/groups_all_pass")


class Collapse(Rule):
    """The policy says one thing only, and it isn't the right one.

    Entropy falls in ordinary runs as well, by three quarters in their first 200 steps (arXiv 2505.22617), so it takes
    three more witnesses: programs alike, tasks unsolved, and no gain.
    """

    name = "collapse"
    needs = ("entropy", "signals/distinct_share", "pass_rate", "reward")
    least = 55
    ENTROPY, DISTINCT, PASSED, GAIN, STEPS = 0.2, 0.35, 0.9, 0.02, 10

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._usual = Reference()
        self._entropy, self._distinct, self._passed = Recent(10), Recent(10), Recent(10)
        self._reward = Recent(30)
        self._streak = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        entropy, distinct, passed, reward = (line.number(name) or 0.0 for name in self.needs)
        self._usual.take(entropy)
        self._entropy.take(entropy)
        self._distinct.take(distinct)
        self._passed.take(passed)
        self._reward.take(reward)
        usual = self._usual.value
        if usual is None or usual <= 0 or not self._reward.full:
            return None
        ratio, half = self._entropy.median / usual, len(self._reward.values) // 2
        gain = change(self._reward.values[:half], self._reward.values[half:])
        holds = (
            ratio < self.ENTROPY
            and self._distinct.median < self.DISTINCT
            and self._passed.median < self.PASSED
            and gain.size <= self.GAIN * (self.facts.reward_range or 1.0)
        )
        if self._streak.take(holds, line.step) < self.STEPS:
            return None
        return Firing(
            "warn",
            f"entropy is at {percent(ratio)} of what it was ({self._entropy.median:.3g}), "
            f"{percent(self._distinct.median)} of a group's programs differ, {percent(self._passed.median)} pass, and "
            "the reward gains nothing",
            self._streak.since,
            f"four conditions together, in {self._streak.length} steps in a row",
            {"entropy_ratio": ratio, "distinct_share": self._distinct.median, "pass_rate": self._passed.median},
        )


class RewardFalls(Rule):
    """The policy had learned more than it knows now: the last 10 steps against the best 10 in a row before."""

    name = "reward-falls"
    needs = ("reward",)
    least = 30
    FALL, Z, BLOCK, NOW, STEPS = 0.15, 5.0, 10, 10, 5

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._now = Recent(self.NOW)
        self._before: list[float] = []  # rewards that have left the newest ones, until they make a block
        self._best: list[float] = []
        self._best_step = 0
        self._highest, self._lowest = float("-inf"), float("inf")
        self._streak = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        reward = line.number("reward") or 0.0
        if self._now.full:
            self._settle(self._now.values[0], line.step - self.NOW)
        self._now.take(reward)
        self._highest, self._lowest = max(self._highest, reward), min(self._lowest, reward)
        if len(self._best) < 2 or not self._now.full:
            return None
        moved = change(self._best, self._now.values)
        span = self.facts.reward_range or max(self._highest - self._lowest, 1e-9)
        holds = moved.size <= -self.FALL * span and moved.z <= -self.Z
        if self._streak.take(holds, line.step) < self.STEPS:
            return None
        best = sum(self._best) / len(self._best)
        return Firing(
            "warn",
            f"the reward is {self._now.mean:.3g} in the last {self.NOW} steps, after {best:.3g} in the "
            f"{len(self._best)} up to step {self._best_step}",
            self._streak.since,
            f"{-moved.z:.1f} standard errors, in {self._streak.length} steps in a row",
            {"reward": self._now.mean, "best": best, "best_step": self._best_step},
        )

    def _settle(self, reward: float, step: int) -> None:
        self._before.append(reward)
        if len(self._before) == self.BLOCK:
            block, self._before = self._before, []
            if not self._best or sum(block) > sum(self._best):
                self._best, self._best_step = block, step


class Repetition(Rule):
    """One token or phrase, over and over, in a share of the completions."""

    name = "repetition"
    needs = ("signals/repeated", "signals/completions")
    least = 3
    SHARE, LEAST, GENERATIONS = 0.1, 10, 3

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._recent: list[tuple[float, float]] = []
        self._streak = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        counts = (line.number("signals/repeated") or 0.0, line.number("signals/completions") or 0.0)
        self._recent = [*self._recent[1 - self.GENERATIONS :], counts]
        found, of = (sum(column) for column in zip(*self._recent, strict=True))
        holds = len(self._recent) == self.GENERATIONS and found >= max(self.LEAST, self.SHARE * of)
        if not self._streak.take(holds, line.step):
            return None
        return Firing(
            "warn",
            f"{percent(found / of)} of the completions say one token or phrase over and over ({found:.0f} of {of:.0f})",
            self._streak.since,
            "counted, not estimated",
            {"repeated_share": found / of, "repeated": found},
        )
