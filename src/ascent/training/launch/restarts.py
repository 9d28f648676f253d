"""When a training that ended goes on by itself, and when it doesn't: the policy, and the loop that follows it.

What a user has to mend ends a run at once; it would end the next attempt as well. A lost machine, a killed process and
an error that nobody foresaw may pass, so another attempt goes on from the last checkpoint, a few times. Where two
attempts in a row fail without a new checkpoint in between, the third would too.
"""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from ascent.errors import InputError
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory

_PAUSES = (0.0, 5.0, 20.0, 60.0)  # seconds before the first, second, ... restart; the last holds for all later ones
# Exit codes of `elastic`, beside 0: the processes came to their end, or were stopped
REFUSED, FAILED, PORT_TAKEN, SIGNALLED = 2, 3, 4, 5


class Ended(enum.Enum):
    """How an attempt ended."""

    DONE = "came to its end"
    STOPPED = "was stopped"  # by whoever may stop it
    REFUSED = "was refused"  # an InputError: something that a user has to mend
    FAILED = "failed"  # a process was killed, or ended with an error that nobody foresaw
    LOST = "lost a machine"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, and why, in words for people."""

    ended: Ended
    why: str = ""


@dataclass(slots=True)
class Policy:
    """At most `most` restarts of one run."""

    most: int
    restarts: int = 0
    _barren: int = 0  # failures in a row without a new checkpoint
    _checkpoint: int = -1  # the newest one's step at the last failure

    def refusal(self, outcome: Outcome, checkpoint: int) -> str | None:
        """Why there is no further attempt after this outcome; None: there is one. `checkpoint`: the newest one's step,
        0 for none."""
        if outcome.ended not in (Ended.FAILED, Ended.LOST):
            return ""  # nothing to explain
        self._barren = 0 if checkpoint > self._checkpoint or outcome.ended is Ended.LOST else self._barren + 1
        self._checkpoint = checkpoint
        if self.restarts >= self.most:
            return f"it was restarted {self.restarts} times" if self.restarts else "it isn't to be restarted"
        if self._barren:
            return "the attempt before ended at the same checkpoint, so another one would as well"
        return None

    def pause(self) -> float:
        """Count a restart; the seconds to wait before it."""
        self.restarts += 1
        return _PAUSES[min(self.restarts, len(_PAUSES)) - 1]


def outcome_of(code: int, *, stopped: bool) -> Outcome:
    """What the exit code of `elastic` says. `stopped`: whether its processes said that they were stopped."""
    if code == 0:
        return Outcome(Ended.STOPPED if stopped else Ended.DONE)
    if code == REFUSED:
        return Outcome(Ended.REFUSED)
    if code == SIGNALLED:
        return Outcome(Ended.STOPPED, "stopped by a signal")
    return Outcome(Ended.FAILED, "its processes failed" if code > 0 else f"its launcher was ended by signal {-code}")


def train_to_the_end(
    run: RunDirectory,
    train_once: Callable[[bool, str], Outcome],
    *,
    resume: bool,
    most: int,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Make attempts until the run came to its end, was stopped, or must not be restarted; the exit code of `ascent`.

    `train_once(resume, why)` makes one attempt; `why` is what ended the one before. Tracebacks of an attempt that is
    followed by another are kept in `logs/`. Raises what `train_once` raises.
    """
    policy, why = Policy(most), ""
    while True:
        try:
            outcome = train_once(resume, why)
        except InputError as error:
            if not policy.restarts:
                raise
            raise InputError(f"{error.message}\n(the attempt before ended since {why})", error.mend) from error
        if outcome.ended is Ended.DONE:
            return 0
        if outcome.ended is Ended.STOPPED:
            return 1 if not outcome.why else 2
        refusal = policy.refusal(outcome, checkpoint_step(run))
        if refusal is not None:
            if outcome.why and (most or outcome.ended is Ended.LOST):
                print(f"error: the run ended: {outcome.why}" + (f"; {refusal}" if refusal else ""), file=sys.stderr)
                print(f"  Once that is mended: ascent train --resume {run.path}", file=sys.stderr, flush=True)
            return 2
        _keep_failures(run, policy.restarts + 1)
        sleep(policy.pause())
        why, resume = outcome.why, True
        print(
            f"note: {why}; restart {policy.restarts} of at most {most}, after step {checkpoint_step(run)}",
            file=sys.stderr,
            flush=True,
        )


def checkpoint_step(run: RunDirectory) -> int:
    """The step of the newest complete checkpoint; 0 where there is none."""
    newest = run.last_checkpoint()
    return 0 if newest is None else run_directory.step_of(newest)


def _keep_failures(run: RunDirectory, restart: int) -> None:
    for failure in run.failures():
        run.logs.mkdir(exist_ok=True)
        failure.rename(run.logs / f"restart{restart}-{failure.name}")
