"""Dynamic sampling: groups whose scores are all equal are replaced by groups of further prompts.

From DAPO (Yu et al. 2025, arXiv:2503.14476, section 3.2): such a group has zero advantage everywhere, so what it costs
is lost, and the batch is smaller than it looks. At most `max_resample_factor` times the samples of a generation are
drawn for it; what is missing then is filled up with groups without signal.

One generation on one rank that needs 4 groups, with `max_resample_factor: 2`:

    begin     prompts of the next 8 places are read; groups 0 to 3 are asked for
    sample    groups 1 and 3 turn out to be without signal: 4 and 5 are asked for, while the others are being sampled
    finish    0, 2, 4, 5 are the batch; 1 and 3 are recorded as dropped; the next place is 6

With over-sampling (`oversample_factor`, see `drawing/stragglers.py`) a generation begins with more groups than it
needs, and what is not complete when enough are goes on in the next. It can be had with replacing, or by itself; then
groups without signal are trained on as any others.

Each rank fills its own part; they meet at the end, to count and to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from ascent.rewards.base import start_rewards
from ascent.training.batches.drawing.curriculum import from_the_middle
from ascent.training.batches.drawing.filled import Counts, Filled
from ascent.training.batches.drawing.history import Observation
from ascent.training.batches.drawing.prompts import PromptOrder
from ascent.training.batches.drawing.round import Judging, Round
from ascent.training.batches.drawing.scored_group import ScoredGroup
from ascent.training.batches.drawing.state import RefillState
from ascent.training.batches.drawing.stragglers import Closing, Straggler
from ascent.training.batches.drawing.telling import ALARM_AFTER, Seen, filled_up, nothing_to_learn
from ascent.training.step.groups import LocalGroup
from ascent.training.step.ranks import Ranks
from ascent.training.step.sampler import Sampler

_SMOOTHING = 0.5  # of the share of groups without signal: how much the last generation counts
_MOST_HOPELESS = 0.9  # the share of them that is planned for
_TOO_OLD = "surplus: sampled by weights too old by now (max_surplus_age)"


@dataclass(frozen=True, slots=True)
class RefillSettings:
    """In groups of one rank: `needed` for a generation, `most` that may be drawn for it, `at_once` that are sampled
    from its beginning on where it is closed early (`closing`). `max_surplus_age` is in optimizer steps (see
    `GRPOConfig`). Without `replaces` groups without signal are as good as others."""

    needed: int
    most: int
    max_surplus_age: int
    curriculum: bool
    seed: int
    replaces: bool = True
    at_once: int = 0
    closing: Closing | None = None


class Prompts(Protocol):
    """The dataset as it is drawn from."""

    def task_of(self, index: int) -> str:
        """The name of a row's task."""
        ...

    def groups(self, indices: Sequence[int], label: str) -> list[LocalGroup]:
        """A whole group for each row, for the generation `label`."""
        ...


class Refill:
    """Fills generations with groups that have signal. Called by the trainer's thread, on all ranks alike."""

    def __init__(
        self,
        settings: RefillSettings,
        order: PromptOrder,
        prompts: Prompts,
        judging: Judging,
        sampler: Sampler,
        ranks: Ranks,
        rewards_lock: AbstractContextManager[object],
        tell: Callable[[str], None],
        alarm: Callable[[str], None],
    ) -> None:
        """`rewards_lock` is held while reward functions are called for groups, perhaps beside this thread. `tell` is
        given sentences for the user, on the first rank, and `alarm` those that are alarms."""
        self.state, self.rewards_lock = RefillState(), rewards_lock
        self._settings, self._order, self._prompts = settings, order, prompts
        self._judging, self._sampler, self._ranks = judging, sampler, ranks
        self._tell, self._alarm = tell, alarm
        self._ahead: Round | None = None

    @property
    def order(self) -> PromptOrder:
        """This rank's order of prompts."""
        return self._order

    @property
    def replaces(self) -> bool:
        """Whether groups without signal are."""
        return self._settings.replaces

    @property
    def prompts(self) -> Prompts:
        """The dataset that is drawn from."""
        return self._prompts

    def fill(self, label: str, steps: int) -> Filled:
        """The groups of generation `label`, sampled now or ahead; `steps` are the optimizer steps done. Collective:
        raises what `Sampler.sample` raises, InputError for a reward function that fails."""
        ahead, self._ahead = self._ahead, None
        current = ahead if ahead is not None and not ahead.forgotten else self._begin(label, steps)
        self._sampler.sample(current.first, further=current)
        return self._finish(label, current)

    def restart_rewards(self, stragglers: Sequence[Straggler]) -> None:
        """Begin with the rewards of their completions that ended, which another process had begun with."""
        for straggler in stragglers:
            for text in straggler.texts.values():
                start_rewards(self._judging.functions, straggler.group.row, text)

    def sample_ahead(self, label: str, steps: int) -> None:
        """Begin with the generation that `fill` will be asked for next. Collective."""
        self._ahead = self._begin(label, steps)
        self._sampler.sample_ahead(self._ahead.first, further=self._ahead)

    def _begin(self, label: str, steps: int) -> Round:
        settings, state = self._settings, self.state
        carried = [each for each in state.surplus if self._young(each, steps)]
        needed = max(0, settings.needed - len(carried))
        at_once = min(needed + self._hopeless(needed), settings.most)
        if settings.closing is not None:
            at_once = settings.at_once - len(carried)
        first = max(0, at_once - len(state.stragglers))
        suits = from_the_middle(state.history, self._prompts.task_of, settings.seed) if settings.curriculum else None
        draws = self._order.following(state.place, settings.most if settings.replaces else first, suits)
        return Round(
            self._judging,
            self._prompts.groups([drawn.index for drawn in draws], label),
            draws,
            carried=carried,
            first=first,
            needed=needed,
            stragglers=state.stragglers,
            closing=settings.closing,
            replaces=settings.replaces,
        )

    def _young(self, group: ScoredGroup, steps: int) -> bool:
        """Whether a group that was left over may be trained on: where generations are closed early, all are."""
        settings = self._settings
        return settings.closing is not None or steps - group.weight_version <= settings.max_surplus_age

    def _hopeless(self, needed: int) -> int:
        """How many of the first groups will have no signal, going by the last generations. Replacements are asked for
        in advance only where those that turn out to be too many can be kept."""
        share = min(self.state.drop_share, _MOST_HOPELESS)
        return int(needed * share / (1 - share)) if self._settings.max_surplus_age else 0

    def _finish(self, label: str, done: Round) -> Filled:
        settings, state = self._settings, self.state
        numbers = sorted(done.scored)
        have = [*done.carried, *(done.scored[number] for number in numbers if number not in done.without_signal)]
        chosen, surplus = have[: settings.needed], have[settings.needed :]
        silent = sorted(done.without_signal, key=lambda number: (done.scored[number].unscored, number))
        missing = settings.needed - len(chosen)
        filler, left = silent[:missing], silent[missing:]
        dropped = [(each, _TOO_OLD) for each in state.surplus if not any(each is young for young in done.carried)]
        dropped += [(done.scored[number], done.without_signal[number]) for number in sorted(left)]
        observations = tuple(self._observe(done.scored[number]) for number in numbers)
        seen = Seen(observations, len(numbers), len(silent), len(chosen), len(filler))
        drawn, stragglers = done.asked - len(done.stragglers), done.left()
        place = done.draws[done.asked - 1].place + 1 if drawn else state.place
        self._meet(label, seen, replace(state, place=place, surplus=tuple(surplus), stragglers=stragglers))
        counts = Counts(
            needed=settings.needed,
            drawn=drawn,
            dropped=len(dropped),
            without_signal=len(filler),
            surplus=len(surplus),
            passes=self._order.passes(place),
            always_solved=self.state.history.always_solved,
            never_solved=self.state.history.never_solved,
            observations=observations,
            stragglers=None if settings.closing is None else len(stragglers),
            carried_tokens=sum(each.tokens for each in stragglers),
        )
        return Filled((*chosen, *(done.scored[number] for number in filler)), tuple(dropped), counts)

    def _observe(self, scored: ScoredGroup) -> Observation:
        totals_G = self._judging.signal.totals(scored)
        known = tuple(totals_G[~totals_G.isnan()].tolist())
        return Observation(self._prompts.task_of(scored.drawn_index), known, scored.passed)

    def _meet(self, label: str, here: Seen, state: RefillState) -> None:
        """Add what all ranks saw to the state, and tell what is to be told. Collective."""
        seen = Seen.together(self._ranks.exchange(here))
        share = seen.without_signal / seen.drawn if seen.drawn else state.drop_share
        history = state.history.after(seen.observations)
        silent = 0 if seen.trained else state.silent + 1
        if silent == ALARM_AFTER:
            self._alarm(nothing_to_learn(seen, history))
        elif seen.filled and not state.told_filled:
            self._tell(filled_up(label, seen))
        self.state = replace(
            state,
            drop_share=state.drop_share + _SMOOTHING * (share - state.drop_share),
            silent=silent,
            told_filled=state.told_filled or seen.filled > 0,
            history=history,
        )
