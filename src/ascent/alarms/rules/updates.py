"""Are the updates sound? Rules about the reference, clipping, importance weights, and numbers that aren't finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from ascent.alarms.alarm import Firing
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line
from ascent.alarms.rules.rule import Rule, percent
from ascent.alarms.sequential import Recent, Streak


class Drift(Rule):
    """The policy moves away from its reference, and earns nothing by it. Only with `beta` > 0 is this measured."""

    name = "drift"
    needs = ("kl", "reward")
    least = 60
    FAR, FURTHER, TIMES, AGO, GAIN = 0.1, 1.0, 3.0, 50, 0.02

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._kl, self._reward = Recent(self.AGO + 10), Recent(self.AGO + 10)

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        self._kl.take(line.number("kl") or 0.0)
        self._reward.take(line.number("reward") or 0.0)
        kl, reward = self._kl.values, self._reward.values
        if len(kl) < 10:
            return None
        now, gained = sum(kl[-10:]) / 10, sum(reward[-10:]) / 10 - sum(reward[:10]) / 10
        before = sum(kl[:10]) / 10
        flat = gained <= self.GAIN * (self.facts.reward_range or 1.0)
        far = self._kl.full and now > self.FAR and now > self.TIMES * before and flat
        if not far and now <= self.FURTHER:
            return None
        return Firing(
            "critical" if now > self.FURTHER else "warn",
            f"the policy is {now:.3g} nats a token away from its reference (mean of 10 steps), after {before:.3g} "
            f"{self.AGO} steps ago; the reward gained {gained:.3g}",
            line.step - 9,
            "a mean of 10 steps; the estimate of one step is far noisier",
            {"kl": now, "kl_before": before, "reward_gain": gained},
        )

    def not_judged(self) -> str | None:
        """See Rule."""
        if self.facts.beta == 0 and "kl" not in self._met:
            return "trainer.beta is 0: the distance to the reference is not measured"
        return super().not_judged()


class Ratio(Rule):
    """Updates too large: many ratios are clipped, or gradients jump."""

    name = "ratio"
    needs = ("grad_norm",)
    least = 50
    CLIPPED, STEPS, JUMP, JUMPS, OF = 0.2, 10, 10.0, 5, 20

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._norms, self._jumped = Recent(50), Recent(self.OF)
        self._clipped = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        norm, clipped = line.number("grad_norm") or 0.0, line.number("clip_ratio/region_mean")
        usual = self._norms.median if self._norms.full else math.inf
        self._norms.take(norm)
        self._jumped.take(float(usual > 0 and norm > self.JUMP * usual))
        if clipped is not None and self._clipped.take(clipped > self.CLIPPED, line.step) >= self.STEPS:
            return Firing(
                "warn",
                f"more than {percent(self.CLIPPED)} of the ratios are clipped since step {self._clipped.since} "
                f"({percent(clipped)} now)",
                self._clipped.since,
                f"in {self._clipped.length} steps in a row",
                {"clip_ratio": clipped},
            )
        jumps = sum(self._jumped.values)
        if jumps < self.JUMPS:
            return None
        return Firing(
            "warn",
            f"the gradient's norm was over {self.JUMP:.0f} times its median of 50 steps in {jumps:.0f} of {self.OF} "
            f"steps ({norm:.3g} now, usual {self._norms.median:.3g})",
            line.step - self.OF + 1,
            "counted, not estimated",
            {"grad_norm": norm, "usual_grad_norm": self._norms.median},
        )


class FewEffective(Rule):
    """Importance weights that rest on few sequences: sampler and trainer are no longer nearly the same policy.

    (Σw)² / (N Σw²) over the sequences of a generation, w = exp(Σ trainer - sampler), falls before a collapse
    (arXiv 2602.17616).
    """

    name = "few-effective"
    needs = ("signals/ess", "signals/ess_completions")
    least = 5
    hard = True
    FEW, FEWER, GENERATIONS, FEWER_GENERATIONS, LEAST = 0.5, 0.3, 5, 2, 8

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._few, self._fewer = Streak(), Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        share, count = line.number("signals/ess") or 0.0, line.number("signals/ess_completions") or 0.0
        known = count >= self.LEAST
        few = self._few.take(known and share < self.FEW, line.step)
        fewer = self._fewer.take(known and share < self.FEWER, line.step)
        if few < self.GENERATIONS and fewer < self.FEWER_GENERATIONS:
            return None
        streak = self._fewer if fewer >= self.FEWER_GENERATIONS else self._few
        return Firing(
            "critical" if fewer >= self.FEWER_GENERATIONS else "warn",
            f"the importance weights of {count:.0f} sequences are worth {share * count:.0f} alike ({percent(share)})",
            streak.since,
            f"in {streak.length} generations in a row",
            {"ess": share, "completions": count},
        )


class Mismatch(Rule):
    """Sampler and trainer give the same tokens other probabilities, although both have the newest weights.

    What is rounding depends on the precision: where the configuration doesn't say it, the first generations do.
    """

    name = "mismatch"
    needs = ("sampling/sampling_logp_difference/mean",)
    least = 3
    hard = True
    # mean |difference| of a token, in nats
    LIMIT: ClassVar[Mapping[str, float]] = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.02}
    FINE, TIMES, FIRST, GENERATIONS = 2e-5, 5.0, 10, 3

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._first = Recent(self.FIRST)
        self._streak = Streak()

    def observes(self, line: Line) -> bool:
        """See Rule. Stale completions differ rightly, and so do those of sampling settings that narrow the choice."""
        apart = line.number("rollout/staleness") or line.number("rollout/biased_ratio")
        return not apart and super().observes(line)

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        mean = line.number("sampling/sampling_logp_difference/mean") or 0.0
        limit, precision = self._limit()
        usual = self._first.median if self._first.full else None
        if not self._first.full:
            self._first.take(mean)
        grown = usual is not None and mean > self.TIMES * usual and mean > limit / 4
        if self._streak.take(mean > limit or grown, line.step) < self.GENERATIONS:
            return None
        return Firing(
            "critical",
            f"sampler and trainer give a token log-probabilities that differ by {mean:.3g} on average; in {precision} "
            f"up to {limit:g} is rounding" + ("" if usual is None else f", and {usual:.3g} was usual at first"),
            self._streak.since,
            f"in {self._streak.length} generations in a row",
            {"difference": mean, "limit": limit, **({} if usual is None else {"usual": usual})},
        )

    def _limit(self) -> tuple[float, str]:
        precision = self.facts.precision
        if precision is None:
            precision = "float32" if self._first.full and self._first.median < self.FINE else "bfloat16"
        return self.LIMIT.get(precision, self.LIMIT["bfloat16"]), precision

    def not_judged(self) -> str | None:
        """See Rule."""
        if self.facts.staleness and not self.observations:
            return "with rollout.staleness=1 the completions' weights are older than the trainer's: they differ rightly"
        return super().not_judged()


class NotFinite(Rule):
    """A loss, gradient or log-probability that isn't a number."""

    name = "not-finite"
    needs = ("step",)
    hard = True
    _FIGURES = ("loss", "grad_norm", "entropy", "kl", "reward", "sampling/sampling_logp_difference/mean")
    _SHARES: ClassVar[Mapping[str, str]] = {  # of the completions of a generation
        "numerics/rewards_not_finite": "rewards",
        "numerics/logps_not_finite": "the sampler's log-probabilities",
        "numerics/only_token_0": "the sampler's logits (token 0 only)",
        "signals/logps_not_finite": "the trainer's log-probabilities",
    }
    SHARE = 0.01  # of a generation's completions: a single one is masked

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        wrong = [name for name in self._FIGURES if line.is_not_finite(name)]
        if "loss" in line.values and line.values["loss"] is None:  # how earlier releases wrote it
            wrong.append("loss")
        found = {name: self._share(line, name) for name in self._SHARES}
        shares = {name: share for name, share in found.items() if share > self.SHARE}
        if not wrong and not shares:
            return None
        told = [
            *wrong,
            *(f"{self._SHARES[name]} of {percent(share)} of the completions" for name, share in shares.items()),
        ]
        return Firing(
            "critical",
            f"not a finite number: {', '.join(told)}",
            line.step,
            "certain",
            {**dict.fromkeys(wrong, 1.0), **shares},
        )

    @staticmethod
    def _share(line: Line, name: str) -> float:
        """Of the completions; figures under `signals/` are counts."""
        found = line.share(name) if name.startswith("signals/") else line.number(name)
        return found or 0.0
