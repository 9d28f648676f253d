"""CodeReward: a completion's program is compiled and tested in the sandbox. For Ascent's trainer and for plain TRL."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ascent.errors import InputError
from ascent.rewards.audit import Audit, Audited
from ascent.rewards.base import Completion, RewardInputs
from ascent.rewards.extract import extract_program
from ascent.rewards.thoughts import opens_thought
from ascent.sandbox.types import Limits, Outcome, Program, Test, Verdict
from ascent.tasks.prompts import ends_in_fence
from ascent.types import Score, Task


class Judge(Protocol):
    """The seam of the sandbox."""

    def submit(
        self, program: Program, tests: Sequence[Test], limits: Limits | None = None, *, later: bool = False
    ) -> Future[Verdict]:
        """Judge a program; the future gives its Verdict. `later`: it may wait until nothing else does."""
        ...

    def close(self) -> None:
        """Stop."""
        ...


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """score = compile x (the program compiles) + tests x (passed / tests) + all_tests x (all tests passed)."""

    compile: float = 0.1
    tests: float = 0.9
    all_tests: float = 0.0


class CodeReward:
    """A TRL reward function over tasks with tests.

    The dataset needs a column `task_id`; `tasks` says which tests belong to it. `start` begins to judge a completion
    that has just been sampled, so that its verdict is there when the reward is asked for; a completion that was never
    started is judged when it is asked for. Equal programs of one task are judged once a batch. Completions of the next
    batch may be started, from another thread too, while this one is still asked for. A program that the
    sandbox could not judge scores None, which masks its completion.
    """

    __name__ = "code_reward"  # TRL's name for it in metrics

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        weights: RewardWeights = RewardWeights(),
        tests: Literal["visible", "hidden", "both"] = "both",
        sandbox: Judge | None = None,
        limits: Limits | None = None,
        prompt_opens_thought: bool = False,
        audit: bool = False,
    ) -> None:
        """`sandbox` defaults to one of its own, closed with the reward. `prompt_opens_thought` says that the chat
        template ends prompts with `<think>` or the like, so that a completion begins within a thought. With `audit`,
        and where visible tests alone are paid, programs that pass all of them are also judged by the hidden ones (see
        `audited`). Raises InputError on tasks without tests."""
        self._tasks = {task.id: task for task in tasks}
        self._weights = weights
        self._choice = tests
        untested = [task.id for task in self._tasks.values() if not self._tests(task)]
        if untested:
            raise InputError(
                f"{len(untested)} tasks have no {'' if tests == 'both' else tests + ' '}tests (first: {untested[0]})",
                "Give them tests, leave them out, or choose others with reward.tests.",
            )
        self._limits = limits
        self._prompt_opens_thought = prompt_opens_thought
        self._sandbox = sandbox or _own_sandbox()
        self._audit = Audit(self._sandbox, limits) if audit and tests == "visible" else None
        self._verdicts: dict[tuple[str, str], Future[Verdict]] = {}
        self._awaited: Counter[tuple[str, str]] = Counter()  # how many completions were started that have that program
        self._lock = threading.Lock()  # of these two
        self.scores: list[Score] = []  # of the last batch, in its order
        self.seconds = 0.0  # sandbox time of the last batch, all slots together

    @classmethod
    def for_run(cls, inputs: RewardInputs) -> CodeReward:
        """The reward `code` of a run: its tasks, its sandbox, and the weights of the section `reward`."""
        section = inputs.section
        weights = RewardWeights(section.compile_weight, section.tests_weight, section.all_tests_weight)
        return cls(
            inputs.tasks,
            weights=weights,
            tests=section.tests,
            sandbox=inputs.sandbox,
            prompt_opens_thought=inputs.prompt_opens_thought,
            audit=section.audit,
        )

    def start(self, row: Mapping[str, Any], text: str) -> None:
        """Begin to judge a completion of the dataset's row (see StreamedReward). Raises InputError for a row without
        `task_id`."""
        if "task_id" not in row:
            raise InputError(
                "the dataset has no column task_id, by which CodeReward finds a completion's tests",
                "Make it with ascent.training.policy_tasks.to_dataset(tasks), or add the column.",
            )
        key = row["task_id"], self.program(row["task_id"], text)
        with self._lock:
            self._awaited[key] += 1
        self._verdict(*key)

    def drop(self, row: Mapping[str, Any], text: str) -> None:
        """A completion that was started won't be asked for (see DroppableReward)."""
        self._let_go([(row["task_id"], self.program(row["task_id"], text))])

    def watch(self, row: Mapping[str, Any], text: str) -> Callable[[], bool]:
        """Whether the verdict on a completion that was started is there (see WatchedReward)."""
        return self._verdict(row["task_id"], self.program(row["task_id"], text)).done

    def __call__(self, completions: Sequence[Completion], task_id: Sequence[str], **columns: Any) -> list[float | None]:
        """The reward of each completion (TRL's signature); also kept, with verdicts, in `scores`."""
        programs = [self.program(task, completion) for task, completion in zip(task_id, completions, strict=True)]
        futures = [self._verdict(task, program) for task, program in zip(task_id, programs, strict=True)]
        judged = {id(future): future.result() for future in futures}
        self.scores = [
            self.score(judged[id(future)], program, self._visible(task))
            for task, future, program in zip(task_id, futures, programs, strict=True)
        ]
        self.seconds = sum(verdict.seconds for verdict in judged.values())
        self._let_go(zip(task_id, programs, strict=True))
        return [score.total for score in self.scores]

    def evaluate(self, task_id: str, completion: Completion) -> Future[Verdict]:
        """Judge a completion by all tests of its task, visible and hidden."""
        task = self._tasks[task_id]
        return self._submit(task, self.program(task_id, completion), task.tests)

    def audited(self, task_id: str, program: str) -> Future[Audited] | None:
        """What the hidden tests say of a program that passes all visible ones; None where there is no audit: hidden
        tests are paid, or the task has none."""
        task = self._tasks[task_id]
        return None if self._audit is None or not task.hidden_tests else self._audit.of(task, program)

    def program(self, task_id: str, completion: Completion) -> str:
        """The program that a completion proposes for a task. Raises InputError for a task that it wasn't given."""
        task = self._tasks.get(task_id)
        if task is None:
            raise InputError(f"the dataset names task {task_id!r}, which CodeReward was not given")
        text = completion if isinstance(completion, str) else str(completion[-1].get("content") or "")
        prompt = task.prompt if isinstance(task.prompt, str) else None
        return extract_program(
            text,
            language=task.language,
            prefix=task.prefix,
            entry_point=task.entry_point,
            in_fence=prompt is not None and ends_in_fence(prompt),
            in_thought=self._prompt_opens_thought if prompt is None else opens_thought(prompt),
        )

    def score(self, verdict: Verdict, program: str = "", visible_tests: int | None = None) -> Score:
        """The score that a verdict earns, whose first `visible_tests` outcomes are of visible tests."""
        if verdict.infrastructure_error is not None:
            return Score(None, {}, verdict, program, visible_tests)
        parts = {
            "compile": self._weights.compile * verdict.compiled,
            "tests": self._weights.tests * verdict.fraction,
        }
        if self._weights.all_tests:
            parts["all_tests"] = self._weights.all_tests * verdict.all_passed
        return Score(sum(parts.values()), parts, verdict, program, visible_tests)

    def close(self) -> None:
        """Stop the sandbox."""
        self._sandbox.close()

    def _tests(self, task: Task) -> tuple[Test, ...]:
        return {"visible": task.visible_tests, "hidden": task.hidden_tests, "both": task.tests}[self._choice]

    def _visible(self, task_id: str) -> int:
        """How many of the tests that are run are visible; these come first."""
        return 0 if self._choice == "hidden" else len(self._tasks[task_id].visible_tests)

    def _verdict(self, task_id: str, program: str) -> Future[Verdict]:
        """The verdict to come. `start` may be called from another thread than the reward itself."""
        key = (task_id, program)
        with self._lock:
            future = self._verdicts.get(key)
            if future is not None:
                return future
            task = self._tasks[task_id]
            future = self._verdicts[key] = self._submit(task, program, self._tests(task))
        if self._audit is not None:
            future.add_done_callback(lambda done: self._begin_audit(task_id, program, done))
        return future

    def _begin_audit(self, task_id: str, program: str, judged: Future[Verdict]) -> None:
        """The audit runs beside sampling too, from the moment that a program is known to pass."""
        if not judged.cancelled() and judged.exception() is None and judged.result().all_passed:
            self.audited(task_id, program)

    def _let_go(self, keys: Iterable[tuple[str, str]]) -> None:
        """Forget verdicts, but for those that a started completion of another batch will ask for."""
        with self._lock:
            keys = list(keys)
            self._awaited.subtract(keys)
            for key in keys:
                if self._awaited[key] <= 0:
                    del self._awaited[key]
                    self._verdicts.pop(key, None)

    def _submit(self, task: Task, program: str, tests: tuple[Test, ...]) -> Future[Verdict]:
        if program.strip():
            judged = Program(program, task.language, task.prelude)
            return self._sandbox.submit(judged, tests, task.limits or self._limits)
        nothing: Future[Verdict] = Future()  # an empty file compiles, but no answer must not earn that
        nothing.set_result(Verdict(False, (Outcome.ERROR,) * len(tests), 0.0, error="no program in the completion"))
        return nothing


def _own_sandbox() -> Judge:
    from ascent.sandbox import Sandbox

    return Sandbox()
