"""What speaks against starting the run as it is, and what to change first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ascent.alarms.advice import advice
from ascent.alarms.alarm import SEVERITY, Level
from ascent.alarms.facts import RunFacts
from ascent.alarms.fold import fold
from ascent.alarms.rules.rule import percent
from ascent.memory.picture import size
from ascent.training.rehearsal.figures import PHASES, Lengths, Signal, Times
from ascent.training.trial.found import Tried, Worst

_MOST_SILENT = 0.7  # of the groups, as the alarm no-signal has it
_MOST_CUT, _ALL_CUT = 0.25, 0.95  # of the completions
_SPARE_LENGTH, _LEAST_LENGTH = 4.0, 256  # as the alarm room has them
_TIGHT = 0.95  # of the usable memory
_AVOIDABLE = ("reward_exposed", "logps", "sync", "other")
_FELT = 0.3  # of a step
_LEAST_GROUPS = 8  # that must all be without signal before the whole run is taken to be


@dataclass(frozen=True, slots=True)
class Concern:
    """`level` is "critical" where the run had better not be started; `mend`: what to change, the likeliest first."""

    level: Level
    what: str
    mend: tuple[str, ...]


def concerns(
    tried: Tried, signal: Signal, lengths: Lengths | None, times: Times | None, facts: RunFacts, ended: str = ""
) -> list[Concern]:
    """The worst first. `ended` says which error ended the trial, where one did."""
    found = [
        *_of_ending(tried, ended),
        *_of_memory(tried),
        *_of_signal(signal, facts, len(tried.lines)),
        *(_of_lengths(lengths, facts) if lengths is not None else ()),
        *(_of_times(times, facts) if times is not None else ()),
        *_of_alarms(tried, facts),
    ]
    return sorted(found, key=lambda concern: -SEVERITY[concern.level])


def _of_ending(tried: Tried, ended: str) -> Iterator[Concern]:
    if ended:
        what, *mend = ended.split("\n")
        yield Concern("critical", what, tuple(line.strip() for line in mend))
    elif tried.code == 1:
        yield Concern("info", f"it was stopped after {len(tried.lines)} steps: the worst batch was not tried", ())


def _of_memory(tried: Tried) -> Iterator[Concern]:
    worst, mends = tried.found.worst, tuple(tried.found.memory_mends)
    if tried.found.out_of_memory:
        what, *rest = tried.found.out_of_memory.split("\n")
        yield Concern("critical", what, tuple(line.strip().removeprefix("- ") for line in rest if line.strip()))
    elif worst is not None and worst.state == "out of memory":
        why = "; ".join(line.strip() for line in worst.why.split("\n"))
        yield Concern("critical", f"the worst batch ({_batch(worst)}) doesn't fit: {why}", mends)
    elif tried.killed:
        tries = worst is not None and worst.state == "trying"
        doing = f"with the worst batch ({_batch(worst)})" if worst and tries else "in a step of the run"
        yield Concern("critical", f"the host's memory ran out {doing}: the kernel ended the process", mends)
    elif worst is not None and worst.state == "done" and worst.in_use > _TIGHT * worst.usable:
        yield Concern(
            "warn",
            f"with the worst batch {size(worst.in_use)} of {size(worst.usable)} are taken: little is left for chance",
            mends,
        )


def _batch(worst: Worst) -> str:
    return f"{worst.rows} sequences of {worst.prompt} + {worst.completion} tokens"


def _of_signal(signal: Signal, facts: RunFacts, steps: int) -> Iterator[Concern]:
    if not signal.groups:
        if steps:
            yield Concern("info", "completions of TRL's own path (trainer.plain) aren't kept: signal isn't known", ())
        return
    if signal.unscored == signal.completions:
        yield Concern("critical", "no completion was scored", advice("unjudged", {}, facts))
        return
    if signal.unscored:
        what = f"{signal.unscored} of {signal.completions} completions were not scored"
        yield Concern("warn", what, advice("unjudged", {}, facts))
    everything = signal.silent == signal.groups and signal.groups >= _LEAST_GROUPS
    if not everything and signal.share < _MOST_SILENT:
        return
    passing = signal.all_pass / signal.silent
    share = f"{percent(signal.share)} of {signal.groups} groups have no signal: all their scores are alike"
    what = f"no group of {signal.groups} has signal: all scores of a group are alike" if everything else share
    what += f" ({percent(passing)} of these groups pass as a whole)"
    mends = advice("no-signal", {"all_pass_share": passing}, facts)
    yield Concern("critical" if everything else "warn", what, mends)


def _of_lengths(lengths: Lengths, facts: RunFacts) -> Iterator[Concern]:
    if lengths.share >= _MOST_CUT:
        needs = "how many they would need can't be told: none ended in the second half"
        raised = f"Raise trainer.max_completion_length ({lengths.allowed} now), and see again."
        if lengths.needed is not None:
            needs = f"about {lengths.needed} would hold 95 % of them, if they go on ending as often"
            raised = f"Raise trainer.max_completion_length from {lengths.allowed} to about {_round(lengths.needed)}."
        read = "Read samples that were cut off: do they end in the middle, or never come to an end?"
        masked = "Leave cut completions out of the loss: trainer.mask_truncated_completions=true."
        yield Concern(
            "critical" if lengths.share >= _ALL_CUT else "warn",
            f"{percent(lengths.share)} of the completions are cut off at {lengths.allowed} tokens; {needs}",
            (raised, read, masked),
        )
    elif lengths.allowed >= _LEAST_LENGTH and not lengths.cut and lengths.allowed >= _SPARE_LENGTH * lengths.finished:
        what = f"the longest completion has {lengths.finished} tokens; max_completion_length allows {lengths.allowed}"
        yield Concern("info", what, advice("room", {"longest": float(lengths.finished)}, facts))


def _of_times(times: Times, facts: RunFacts) -> Iterator[Concern]:
    """A phase that a step could do without for the most part, and spends its time in."""
    for name in _AVOIDABLE:
        share = times.phases[name] / times.step
        if share >= _FELT:
            mends = advice("slower", {f"phase/{name}": 1.0}, facts)
            bench = "`ascent bench --training` measures what the step could do without, and what to change first."
            yield Concern("info", f"{PHASES[name]} takes {percent(share)} of a step", (*mends, bench))


def _of_alarms(tried: Tried, facts: RunFacts) -> Iterator[Concern]:
    """What the run's own alarms say of its first steps; that there is no signal is told above."""
    alarms, _ = fold(tried.lines, facts)
    for alarm in alarms:
        if alarm.name != "no-signal":
            yield Concern(alarm.level, f"alarm {alarm.name}: {alarm.what}", alarm.mend)


def _round(tokens: int) -> int:
    """Up to a whole multiple of 32, or of 256 from 1,024 on."""
    to = 32 if tokens < 1024 else 256
    return -(-tokens // to) * to
