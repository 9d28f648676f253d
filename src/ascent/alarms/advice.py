"""What to change first, for each alarm, with the run's own figures in it.

Most of it is said of GRPO in general: TRL's defaults (beta 0, learning rate 1e-6), DAPO's upper clipping bound of 0.28,
learning rates of adapters about ten times those of whole models. What a run has measured decides between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ascent.alarms.facts import RunFacts

Figures = Mapping[str, float]
CLIP_HIGHER = 0.28  # DAPO's upper bound
WEAK_TESTS_BETA = 0.04  # pulls back to the reference where tests say little


def advice(name: str, figures: Figures, facts: RunFacts) -> tuple[str, ...]:
    """What to change, the likeliest first. Raises KeyError for an alarm that isn't in `rules.table`."""
    return tuple(_ADVICE[name](figures, facts))


def _hollow(figures: Figures, facts: RunFacts) -> list[str]:
    mends = ["Read the samples: their programs show what is recognized instead of solved."]
    if facts.reward_tests == "visible":
        mends.append("Pay for hidden tests too: reward.tests=both.")
    mends += [
        "Give the tasks more tests, of other kinds than the visible ones, and raise reward.all_tests_weight.",
        "Go on from a checkpoint of before this began.",
    ]
    return mends


def _untrue(figures: Figures, facts: RunFacts) -> list[str]:
    mends = ["Read the samples of high reward: a part is paid for that isn't the goal."]
    if not facts.only_code:
        mends.append(
            "Lower the weight of the reward functions beside the tests (reward.functions), or bound what they add."
        )
    if facts.reward_tests == "visible":
        mends.append("Pay for hidden tests too: reward.tests=both.")
    return [*mends, *_beta_for_weak_tests(facts)]


def _held_out(figures: Figures, facts: RunFacts) -> list[str]:
    return ["Take the best checkpoint (tracking.eval_every shows which).", "Train on more tasks.", *_raise_beta(facts)]


def _tampering(figures: Figures, facts: RunFacts) -> list[str]:
    return [
        "Read the samples: markers name what each program does.",
        "Say in the prompt that only a function is asked for; such programs earn nothing where they are caught.",
        "Where one of them passes all tests, add hidden tests and report it: the sandbox should have seen it.",
    ]


def _no_signal(figures: Figures, facts: RunFacts) -> list[str]:
    if figures.get("all_pass_share", 0.0) > 0.5:
        return [
            "The tasks are learned: end the run, or give it harder ones (tasks.train).",
            "trainer.max_resample_factor above 1 draws other prompts in place of solved ones.",
        ]
    more = "" if facts.num_generations is None else f" (trainer.num_generations: {facts.num_generations} now)"
    return [
        "Look at samples: are completions cut off, or without a program?",
        f"Give easier tasks, or more completions of each{more}.",
        "Pay parts of a solution their due: reward.tests_weight beside reward.all_tests_weight.",
        "trainer.max_resample_factor above 1 draws other prompts in place of those without signal.",
    ]


def _falls(figures: Figures, facts: RunFacts) -> list[str]:
    step = figures.get("best_step", 0.0)
    return [f"Go on from a checkpoint of about step {step:.0f}.", *_lower_rate(facts), *_beta_for_weak_tests(facts)]


def _collapse(figures: Figures, facts: RunFacts) -> list[str]:
    mends = [*_lower_rate(facts, most=5), *_temperature(facts)]
    if facts.epsilon_high is not None and facts.epsilon_high < CLIP_HIGHER:
        mends.append(
            f"Raise trainer.epsilon_high from {facts.epsilon_high:g} to {CLIP_HIGHER:g}: rare tokens may gain more."
        )
    return [*mends, "Give entropy a weight of its own (trainer.entropy_coef, 0.001 to begin with).", _BACK]


def _repetition(figures: Figures, facts: RunFacts) -> list[str]:
    return [
        "Read the samples: does the reward pay for length, or does sampling never meet an end token?",
        *_lower_rate(facts),
        *_temperature(facts),
        _BACK,
    ]


def _length(figures: Figures, facts: RunFacts) -> list[str]:
    correlation = figures.get("length_reward_correlation", 0.0)
    mends = []
    if correlation > 0.3:
        mends.append(f"Length and reward correlate by {correlation:.2f} within groups: see what pays for length.")
    if figures["clipped_ratio"] > 0.1:
        mends += [
            f"Raise trainer.max_completion_length ({facts.max_completion_length} now), if samples end in the middle.",
            "Leave cut completions out of the loss: trainer.mask_truncated_completions=true.",
        ]
    return [*mends, "Read samples of before and after: what do the further tokens say?"]


def _drift(figures: Figures, facts: RunFacts) -> list[str]:
    return [*_raise_beta(facts), *_lower_rate(facts), _BACK]


def _ratio(figures: Figures, facts: RunFacts) -> list[str]:
    return [
        *_lower_rate(facts),
        "Make fewer updates of a generation (trainer.num_iterations, trainer.steps_per_generation).",
    ]


def _few(figures: Figures, facts: RunFacts) -> list[str]:
    fresh = ["Sample with the newest weights: rollout.staleness=0."] if facts.staleness else []
    return [
        *fresh,
        "Compute the head in float32, and sample in the precision that is trained in (rollout.dtype).",
        *_lower_rate(facts),
    ]


def _mismatch(figures: Figures, facts: RunFacts) -> list[str]:
    warmth = "" if facts.temperature is None else f" (trainer.temperature is {facts.temperature:g})"
    return [
        "See whether the sampler has the trainer's weights: rollout.verify=true checks each update.",
        f"See whether both sides have the same temperature{warmth}, top_p 1 and top_k 0; generation_kwargs and the "
        "settings of a server count too.",
        "Sample in the precision that is trained in: rollout.dtype.",
    ]


def _not_finite(figures: Figures, facts: RunFacts) -> list[str]:
    causes = [mend for name, mend in _NOT_FINITE.items() if name in figures]
    if causes and figures.keys() <= _NOT_FINITE.keys():
        return causes  # the policy itself is sound
    return [
        *causes,
        "Stop the run; go on from the checkpoint before.",
        *_lower_rate(facts),
        "Train in bfloat16 or float32 instead of float16; clip gradients (trainer.max_grad_norm).",
        "If it comes back at the same step: a token that the sampler could not score, or a reward that isn't finite.",
    ]


def _slower(figures: Figures, facts: RunFacts) -> list[str]:
    if "phase/generate" in figures:
        return ["Look at kv_cache_use, waiting and preemptions under `engine`: is the KV cache full?", _OTHER_WORK]
    if "phase/reward_exposed" in figures or "phase/programs" in figures:
        return [
            "Read the samples that took longest in the sandbox; sandbox.wall_seconds bounds each of them.",
            "Give the sandbox more slots (sandbox.slots), if cores are free.",
        ]
    if "phase/sync" in figures:
        return ["Look at the network between trainer and servers, and at the servers' logs.", _OTHER_WORK]
    return [_OTHER_WORK, "Look at memory under `device`: a full card swaps or splits its work."]


def _communication(figures: Figures, facts: RunFacts) -> list[str]:
    mends = {
        "weights": [
            "Bring weights by a broadcast between devices (rollout.transport=hccl or nccl), where they have one.",
            "Sample while training: rollout.staleness=1 hides most of it.",
        ],
        "gradients": [
            "Give each update more to compute: a larger trainer.per_device_train_batch_size or "
            "trainer.gradient_accumulation_steps.",
            "See whether all ranks work equally fast: waiting for the slowest counts too.",
        ],
        "gathers": ["See whether all ranks work equally fast: a gather takes as long as the slowest takes to come."],
    }
    largest = max(mends, key=lambda kind: figures.get(f"seconds/{kind}", 0.0))
    return [
        *mends[largest],
        "Look at the network between machines: the interface (cluster.interface), and `ascent cluster check`.",
    ]


def _preempted(figures: Figures, facts: RunFacts) -> list[str]:
    return ["Give the KV cache more memory (memory.engine_share), or lower rollout.max_num_seqs."]


def _unjudged(figures: Figures, facts: RunFacts) -> list[str]:
    return [
        "Run `ascent sandbox check`, and look at free disk, memory and processes.",
        "See the column `error` of the rollouts.",
    ]


def _room(figures: Figures, facts: RunFacts) -> list[str]:
    return [
        f"Lower trainer.max_completion_length to about {2 * figures['longest']:.0f}; more sequences fit then at once."
    ]


def _lower_rate(facts: RunFacts, most: int = 2) -> list[str]:
    rate = facts.learning_rate
    if rate is None:
        return ["Halve trainer.learning_rate."]
    new = f"{rate / 2:.2g}" if most == 2 else f"{rate / most:.2g} to {rate / 2:.2g}"
    return [f"Lower trainer.learning_rate from {rate:.2g} to {new}."]


def _raise_beta(facts: RunFacts) -> list[str]:
    if not facts.beta:
        return [f"Pull back to the reference: trainer.beta={WEAK_TESTS_BETA:g}."]
    return [f"Double trainer.beta, from {facts.beta:g} to {2 * facts.beta:g}."]


def _beta_for_weak_tests(facts: RunFacts) -> list[str]:
    return (
        []
        if facts.beta
        else [f"Where the tests are weak, pull back to the reference: trainer.beta={WEAK_TESTS_BETA:g}."]
    )


def _temperature(facts: RunFacts) -> list[str]:
    if facts.temperature is None or facts.temperature >= 1:
        return []
    return [f"Raise trainer.temperature from {facts.temperature:g} to 1."]


_NOT_FINITE = {
    "numerics/rewards_not_finite": "Look at what a reward function divides by; such rewards count as not scored.",
    "numerics/logps_not_finite": "Look at the engine's precision (rollout.dtype) and its log; tokens without a finite "
    "log-probability are trained on uncorrected.",
    "numerics/only_token_0": "A sampler whose logits are NaN gives token 0: look at the weights that it has "
    "(rollout.verify=true), its precision (rollout.dtype) and its attention kernel.",
}
_BACK = "Go on from a checkpoint of before this began."
_OTHER_WORK = "See what else works on this machine (docs/doctor.md)."
_ADVICE: Mapping[str, Callable[[Figures, RunFacts], list[str]]] = {
    "hollow-passes": _hollow,
    "reward-without-truth": _untrue,
    "held-out-falls": _held_out,
    "tampering": _tampering,
    "no-signal": _no_signal,
    "reward-falls": _falls,
    "collapse": _collapse,
    "repetition": _repetition,
    "length": _length,
    "drift": _drift,
    "ratio": _ratio,
    "few-effective": _few,
    "mismatch": _mismatch,
    "not-finite": _not_finite,
    "slower": _slower,
    "communication": _communication,
    "preempted": _preempted,
    "unjudged": _unjudged,
    "room": _room,
}
