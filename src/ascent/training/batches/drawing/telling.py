"""What all ranks together saw of a generation's groups, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ascent.training.batches.drawing.history import History, Observation

ALARM_AFTER = 3  # generations in a row without any signal, of all prompts that could be drawn


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one rank, or of all: groups `drawn`, those of them `without_signal`, those `trained` on with signal, and the
    groups without signal that `filled` the batch up. `observations` are of all drawn groups."""

    observations: tuple[Observation, ...]
    drawn: int
    without_signal: int
    trained: int
    filled: int

    @classmethod
    def together(cls, ranks: Sequence[Seen]) -> Seen:
        """What several ranks saw."""
        return cls(
            tuple(each for rank in ranks for each in rank.observations),
            *(sum(getattr(rank, name) for rank in ranks) for name in ("drawn", "without_signal", "trained", "filled")),
        )


def filled_up(label: str, seen: Seen) -> str:
    """A generation has fewer groups with signal than it needs."""
    return (
        f"note: generation {label} drew {seen.drawn} groups, as many as max_resample_factor allows, and {seen.trained} "
        f"of the {seen.trained + seen.filled} that it trains on have signal; the others don't change the policy. A "
        "higher max_resample_factor draws more; other tasks waste less. (Said once; sampling/groups_without_signal "
        "counts them.)"
    )


def nothing_to_learn(seen: Seen, history: History) -> str:
    """No group has had signal for `ALARM_AFTER` generations."""
    shares = [history.share(each) for each in seen.observations if each.totals]
    solved, unsolved = sum(share == 1 for share in shares), sum(share == 0 for share in shares)
    unscored = len(seen.observations) - len(shares)
    if unscored > max(solved, unsolved):
        mend = "No reward function gives them a score: see rewards and the sandbox."
    elif not solved and not unsolved:
        mend = (
            "Scores differ from group to group at most: the tasks may be too hard for this policy, too easy, or the "
            "reward blind to what its completions differ in."
        )
    elif solved > unsolved:
        mend = "The policy has learned these tasks: end the run, or give it harder ones (tasks.train)."
    else:
        mend = (
            "The tasks are too hard for this policy: give it easier ones (tasks.train), more completions of each "
            "(trainer.num_generations, trainer.temperature), or a reward that gives parts of a solution its due."
        )
    return (
        f"ALARM: nothing has been learned in {ALARM_AFTER} generations: all scores of each group are equal. Of the "
        f"last {seen.drawn} groups that were drawn, {solved} were solved by all completions, {unsolved} by none, and "
        f"{unscored} have no score. {mend} The run goes on."
    )
