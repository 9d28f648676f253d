"""Lines of metrics.jsonl as healthy runs write them, made up: what alarms may not be raised over.

Every series is another run: another policy, other tasks, another batch, another machine. Its pass rate rises (or stands
still) while single tasks are won and lost; entropy falls by three quarters or less; lengths drift; gradients have heavy
tails; the machine is busy with other work for a while. Groups are drawn completion by completion, so that shares have
the noise that a run's have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ascent.alarms.facts import RunFacts

HELD_OUT, SAMPLES = 64, 4  # tasks, and completions of each, of an evaluation


@dataclass(frozen=True, slots=True)
class Run:
    """What differs from run to run. `gain` is how far the policy's ability rises, in logits, `tau` the steps that half
    of it takes; `spread` how much tasks differ. `hollow` is the share of passes that are luck, `entropy_left` what is
    left of the entropy at the end, `growth` of the lengths."""

    groups: int
    group_size: int
    start: float
    gain: float
    tau: float
    spread: float
    hollow: float
    entropy_left: float
    growth: float
    length: float
    float32: bool
    beta: float
    step_seconds: float
    weights: tuple[float, float, float]

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Run:
        """A run at random."""
        return cls(
            groups=int(rng.choice([8, 16, 32, 64])),
            group_size=int(rng.choice([4, 8, 16])),
            start=rng.uniform(-2.0, 0.5),
            gain=0.0 if rng.random() < 0.1 else rng.uniform(0.3, 4.0),
            tau=rng.uniform(20, 400),
            spread=rng.uniform(0.5, 2.5),
            hollow=rng.uniform(0.0, 0.06),
            entropy_left=rng.uniform(0.2, 1.0),
            growth=rng.uniform(0.7, 1.7),
            length=float(np.exp(rng.uniform(np.log(12), np.log(800)))),
            float32=bool(rng.random() < 0.5),
            beta=float(rng.choice([0.0, 0.0, 0.02, 0.04])),
            step_seconds=float(np.exp(rng.uniform(0, np.log(90)))),
            weights=((0.1, 0.9, 0.0), (0.1, 0.2, 0.7))[int(rng.integers(2))],
        )

    def facts(self) -> RunFacts:
        """What a configuration of this run says."""
        return RunFacts(
            beta=self.beta,
            learning_rate=1e-6,
            temperature=1.0,
            num_generations=self.group_size,
            max_completion_length=int(4 * self.length) + 16,
            reward_range=1.0,
            compile_reward=0.1,
            only_code=True,
            reward_tests="both",
            precision="float32" if self.float32 else None,
        )


def healthy_series(seed: int, steps: int) -> tuple[RunFacts, list[dict[str, Any]], list[dict[str, Any]]]:
    """The settings, the lines of metrics.jsonl and those of evaluations.jsonl of one healthy run."""
    rng = np.random.default_rng(seed)
    run = Run.drawn(rng)
    tasks = rng.normal(0, run.spread, 2000)
    held_out = rng.normal(0, run.spread, HELD_OUT)
    paths = _Paths(run, rng, steps)
    lines, evaluations = [], []
    for step in range(1, steps + 1):
        if step % 50 == 1:
            evaluations.append(_evaluation(rng, paths.ability[step - 1], held_out, step - 1))
        lines.append(_line(run, rng, paths, tasks, step, steps))
    return run.facts(), lines, evaluations


class _Paths:
    """What changes slowly over a run, for all steps at once."""

    def __init__(self, run: Run, rng: np.random.Generator, steps: int) -> None:
        time = np.arange(steps)
        progress = 1 - 0.5 ** (time / run.tau)
        self.ability = run.start + run.gain * progress + _wander(rng, steps, 0.08)
        self.entropy = run.entropy_left ** np.minimum(1, time / 200) * np.exp(_wander(rng, steps, 0.05))
        self.length = run.length * run.growth**progress * np.exp(_wander(rng, steps, 0.04))
        self.compiles = rng.uniform(0.6, 1.0) ** (0.5 ** (time / 60))
        self.drift = rng.uniform(0.01, 0.06) * progress
        self.load = np.ones(steps)
        for _ in range(rng.poisson(steps / 500)):  # other work on the machine
            begin, lasts = int(rng.integers(steps)), int(rng.integers(3, 80))
            self.load[begin : begin + lasts] = rng.uniform(1.2, 3.0)


def _wander(rng: np.random.Generator, steps: int, size: float) -> np.ndarray:
    """Noise that remembers: of standard deviation `size`, half forgotten after ten steps."""
    kept = 0.5**0.1
    noise = rng.normal(0, size * np.sqrt(1 - kept**2), steps)
    values = np.empty(steps)
    last = 0.0
    for place in range(steps):
        last = kept * last + noise[place]
        values[place] = last
    return values


def _evaluation(rng: np.random.Generator, ability: float, held_out: np.ndarray, step: int) -> dict[str, Any]:
    rates = rng.binomial(SAMPLES, _sigmoid(ability + held_out)) / SAMPLES
    results = {
        f"held/{place}": {"greedy": float(rate > 0.5), "sampled": float(rate)} for place, rate in enumerate(rates)
    }
    return {"evaluation": step // 50, "name": "during", "step": step, "results": results}


def _line(
    run: Run, rng: np.random.Generator, paths: _Paths, tasks: np.ndarray, step: int, steps: int
) -> dict[str, Any]:
    now, size, count = step - 1, run.group_size, run.groups * run.group_size
    difficulty_G = rng.choice(tasks, run.groups)
    compiled_G = rng.binomial(size, paths.compiles[now], run.groups)
    solved_G = rng.binomial(compiled_G, _sigmoid(paths.ability[now] + difficulty_G))
    lucky_G = rng.binomial(size - solved_G, run.hollow * _sigmoid(paths.ability[now] + difficulty_G))
    passed_G = solved_G + lucky_G
    rest = count - int(solved_G.sum())
    fraction_of_rest = rng.uniform(0.1, 0.4) * paths.compiles[now]
    hidden = (solved_G.sum() + rest * fraction_of_rest) / count
    compile_weight, tests, everything = run.weights
    reward = compile_weight * compiled_G.sum() / count + tests * hidden + everything * solved_G.sum() / count
    silent_G = (solved_G == size) | ((solved_G == 0) & (rng.random(run.groups) < 0.5))
    distinct = float(np.clip(0.9 * paths.entropy[now] ** 0.5 * rng.normal(1, 0.05), 1 / size, 1))
    groups = {
        "task": [f"task/{place}" for place in range(run.groups)],
        "completions": [size] * run.groups,
        "passed_visible": passed_G.tolist(),
        "passers_known": passed_G.tolist(),
        "hollow": lucky_G.tolist(),
        "solved": solved_G.tolist(),
    }
    signals = {
        "groups": run.groups,
        "completions": count,
        "groups_without_signal": int(silent_G.sum()),
        "groups_all_pass": int((solved_G == size).sum()),
        "groups_all_fail": int((silent_G & (solved_G == 0)).sum()),
        "passed_visible": int(passed_G.sum()),
        "passers_known": int(passed_G.sum()),
        "hollow": int(lucky_G.sum()),
        "hidden_known": count,
        "hidden_fraction": float(hidden),
        "solved": int(solved_G.sum()),
        "unscored": int(rng.binomial(count, 0.003)),
        "unjudged": 0,
        "reward_min": 0.0,
        "reward_max": 1.0,
        "tampering": int(rng.binomial(count, 0.002)),
        "tampering_passed": 0,
        "repeated": int(rng.binomial(count, 0.01)),
        "distinct_share": distinct,
        "ess": float(np.clip(rng.normal(0.95 if run.float32 else 0.85, 0.03), 0, 1)),
        "ess_completions": count,
        "logps_not_finite": 0,
        "length_reward_correlation": float(rng.normal(0, 0.1)),
        "sandbox_seconds": float(count * 0.02 * rng.lognormal(0, 0.2) * paths.load[now]),
    }
    norm = float(rng.lognormal(-1, 0.5) * (rng.choice([5.0, 20.0]) if rng.random() < 0.015 else 1.0))
    difference = (1e-6 if run.float32 else 4e-3) * float(rng.lognormal(0, 0.2))
    length, clipped = paths.length[now], rng.binomial(count, 0.03) / count
    return {
        "step": step,
        "total_steps": steps,
        "generation": now,
        "loss": float(rng.normal(0, 0.02)),
        "grad_norm": norm,
        "entropy": float(paths.entropy[now] * rng.lognormal(0, 0.05)),
        **({"kl": float(paths.drift[now] * rng.lognormal(0, 0.3))} if run.beta else {}),
        "reward": float(reward),
        "frac_reward_zero_std": float(silent_G.mean()),
        "pass_rate": float(solved_G.sum() / count),
        "clip_ratio/region_mean": float(abs(rng.normal(0, 0.01))),
        "completions/mean_length": float(length * rng.lognormal(0, 0.03)),
        "completions/max_length": float(3 * length),
        "completions/max_terminated_length": float(2.8 * length),
        "completions/clipped_ratio": clipped,
        "sampling/sampling_logp_difference/mean": difference,
        "rollout/staleness": 0.0,
        **{f"signals/{name}": value for name, value in signals.items()},
        "signal_groups": groups,
        "times": _times(run, rng, float(length / run.length), float(1 - silent_G.mean()), float(paths.load[now])),
        "engine": {"preemptions": int(rng.random() < 0.02)},
        "device": {},
    }


def _times(run: Run, rng: np.random.Generator, longer: float, taught: float, load: float) -> dict[str, float]:
    shares = {"generate": 0.5 * longer, "reward_exposed": 0.05, "logps": 0.1 * longer, "sync": 0.05, "other": 0.02}
    shares["update"] = 0.28 * longer * max(taught, 0.1)
    times = {name: run.step_seconds * share * load * rng.lognormal(0, 0.15) for name, share in shares.items()}
    if rng.random() < 0.01:  # a pause of the whole machine, which one phase meets
        times[str(rng.choice(list(times)))] *= 8
    return {name: float(seconds) for name, seconds in {**times, "step": sum(times.values())}.items()}


def _sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values))
