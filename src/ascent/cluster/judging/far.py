"""One judge as a run sees it: questions that are answered later, in some other thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ascent.sandbox.types import Language


class JudgeLostError(Exception):
    """A judge didn't answer and what it was asked is lost. `for_good`: it won't come back."""

    def __init__(self, why: str, *, for_good: bool) -> None:
        super().__init__(why)
        self.for_good = for_good


# Hears of a judge's answer, from any thread, and does little: text that is yet to be checked, or why there is none: a
# JudgeLostError, or another exception for a fault of ours.
Heard = Callable[[object], None]


class FarJudge(Protocol):
    """The judge of a node (`node.NodeJudge`)."""

    def about(self, heard: Heard) -> None:
        """Ask what it can do."""
        ...

    def judge(self, request: str, heard: Heard) -> None:
        """Ask for verdicts."""
        ...

    def check(self, language: Language, prelude: str, heard: Heard) -> None:
        """Ask whether it can judge such programs."""
        ...

    def keep_off_engines(self) -> None:
        """See `Sandbox.keep_off_engines`; there is no answer."""
        ...


class RayJudge:
    """A judge that is an actor of Ray."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def about(self, heard: Heard) -> None:
        """See FarJudge."""
        self._tell(heard, self._actor.about)

    def judge(self, request: str, heard: Heard) -> None:
        """See FarJudge."""
        self._tell(heard, self._actor.judge, request)

    def check(self, language: Language, prelude: str, heard: Heard) -> None:
        """See FarJudge."""
        self._tell(heard, self._actor.check, language, prelude)

    def keep_off_engines(self) -> None:
        """See FarJudge."""
        self._actor.keep_off_engines.remote()

    def _tell(self, heard: Heard, method: Any, *arguments: str) -> None:
        from ray.exceptions import RayActorError, RayError, RayTaskError

        def answered(future: Any) -> None:
            try:
                heard(future.result())
            except RayTaskError as error:
                heard(error)
            except RayActorError as error:
                heard(JudgeLostError(_cause(error), for_good=_is_for_good(error)))
            except RayError as error:  # its answer was lost with its node
                heard(JudgeLostError(_cause(error), for_good=False))

        try:
            future = method.remote(*arguments).future()
        except RayActorError as error:
            heard(JudgeLostError(_cause(error), for_good=_is_for_good(error)))
            return
        future.add_done_callback(answered)


def _is_for_good(error: Exception) -> bool:
    from ray.exceptions import ActorUnavailableError

    return not isinstance(error, ActorUnavailableError)


def _cause(error: Exception) -> str:
    """Ray's messages begin with what happened and end with why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
