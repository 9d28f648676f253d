"""CodeReward with the real sandbox, and its order of work with a judge that waits to be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.rewards.code import CodeReward, RewardWeights
from ascent.sandbox import Sandbox
from ascent.sandbox.types import FunctionTest, Limits, Outcome, Program, Test, Verdict
from ascent.types import Task

RIGHT = "```python\ndef f(x):\n    return x + 1\n```"
WRONG = "```python\ndef f(x):\n    return 1 if x == 0 else x\n```"
BROKEN = "```python\ndef f(x)\n    return x\n```"


def task(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": "inc",
        "prompt": "Add one.",
        "visible_tests": (FunctionTest("f", (0,), 1),),
        "hidden_tests": (FunctionTest("f", (1,), 2), FunctionTest("f", (5,), 6)),
        "entry_point": "f",
        **changes,
    }
    return Task(**fields)


class Waiting:
    """A judge whose verdicts come when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Program, Sequence[Test], Future[Verdict]]] = []
        self.closed = False

    def submit(
        self, program: Program, tests: Sequence[Test], limits: Limits | None = None, *, later: bool = False
    ) -> Future[Verdict]:
        future: Future[Verdict] = Future()
        self.asked.append((program, tests, future))
        return future

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(slots=1, nice=0) as made:
        yield made


def test_scores_are_compile_part_and_share_of_tests(sandbox: Sandbox) -> None:
    reward = CodeReward([task()], sandbox=sandbox, weights=RewardWeights(compile=0.25, tests=0.75))
    completions = [RIGHT, WRONG, BROKEN, "", "no idea"]
    assert reward(completions, ["inc"] * 5) == pytest.approx([1.0, 0.25 + 0.75 / 3, 0.0, 0.0, 0.0])
    right, wrong, broken, empty, chat = reward.scores
    assert right.parts == {"compile": 0.25, "tests": 0.75}
    assert right.verdict is not None
    assert right.verdict.all_passed
    assert wrong.verdict is not None
    assert wrong.verdict.outcomes == (Outcome.PASSED, Outcome.FAILED, Outcome.FAILED)
    assert broken.verdict is not None
    assert not broken.verdict.compiled
    assert broken.program == "def f(x)\n    return x\n"
    assert empty.verdict is not None
    assert empty.verdict.error == "no program in the completion"
    assert chat.total == 0
    assert reward.seconds > 0


def test_a_part_of_the_score_may_be_for_passing_everything(sandbox: Sandbox) -> None:
    weights = RewardWeights(compile=0.1, tests=0.2, all_tests=0.7)
    reward = CodeReward([task()], sandbox=sandbox, weights=weights)
    assert reward([RIGHT, WRONG, BROKEN], ["inc"] * 3) == pytest.approx([1.0, 0.1 + 0.2 / 3, 0.0])
    assert [score.parts["all_tests"] for score in reward.scores] == pytest.approx([0.7, 0.0, 0.0])
    visible_only = CodeReward([task()], sandbox=sandbox, weights=weights, tests="visible")
    assert visible_only([WRONG], ["inc"]) == pytest.approx([1.0]), "all tests that count here"


@pytest.mark.parametrize(("tests", "expected"), [("visible", 1.0), ("hidden", 0.1), ("both", 0.1 + 0.9 / 3)])
def test_which_tests_count_is_chosen_but_evaluation_uses_all(sandbox: Sandbox, tests: Any, expected: float) -> None:
    reward = CodeReward([task()], sandbox=sandbox, tests=tests)
    assert reward([WRONG], ["inc"]) == pytest.approx([expected])
    assert len(reward.evaluate("inc", WRONG).result().outcomes) == 3


def test_chat_messages_are_completions_too(sandbox: Sandbox) -> None:
    reward = CodeReward([task()], sandbox=sandbox)
    assert reward([[{"role": "assistant", "content": RIGHT}]], ["inc"]) == pytest.approx([1.0])


def test_what_was_started_is_not_judged_again_and_equal_programs_once() -> None:
    judge = Waiting()
    reward = CodeReward([task(), task(id="other")], sandbox=judge)
    reward.start({"task_id": "inc"}, RIGHT)
    reward.start({"task_id": "inc"}, f"Again:\n{RIGHT}")
    reward.start({"task_id": "other"}, RIGHT)
    assert [len(tests) for _, tests, _ in judge.asked] == [3, 3], "same program: once a task"
    for _, tests, future in judge.asked:
        future.set_result(Verdict(True, (Outcome.PASSED,) * len(tests), 0.5))
    assert reward([RIGHT, RIGHT, RIGHT], ["inc", "inc", "other"]) == pytest.approx([1.0, 1.0, 1.0])
    assert len(judge.asked) == 2
    assert reward.seconds == 1.0
    reward.start({"task_id": "inc"}, RIGHT)
    assert len(judge.asked) == 3, "a new batch is judged anew"


def test_what_will_not_be_asked_for_is_forgotten() -> None:
    """A hundred completions that were sampled ahead and dropped, one of which the present batch has too."""
    judge = Waiting()
    reward = CodeReward([task()], sandbox=judge)
    row = {"task_id": "inc"}
    for number in range(100):
        reward.start(row, f"f = {number}")
    reward.start(row, "f = 7")  # of the present batch
    assert len(judge.asked) == 100
    for number in range(100):
        reward.drop(row, f"f = {number}")
    assert list(reward._verdicts) == [("inc", "f = 7\n")]
    reward.start(row, "f = 7")  # of the next batch
    judge.asked[7][2].set_result(Verdict(True, (Outcome.PASSED,) * 3, 0.1))
    assert reward(["f = 7"], ["inc"]) == [1.0]
    assert list(reward._verdicts) == [("inc", "f = 7\n")], "the next batch will ask for it"
    assert reward(["f = 7"], ["inc"]) == [1.0]
    assert len(judge.asked) == 100
    assert not reward._verdicts
    assert not reward._awaited


def test_a_failure_of_the_sandbox_masks_the_completion() -> None:
    judge = Waiting()
    reward = CodeReward([task()], sandbox=judge)
    reward.start({"task_id": "inc"}, RIGHT)
    judge.asked[0][2].set_result(Verdict(False, (Outcome.NOT_RUN,) * 3, 0.0, infrastructure_error="slot died"))
    assert reward([RIGHT], ["inc"]) == [None]
    assert reward.scores[0].verdict is not None
    reward.close()
    assert judge.closed


def test_a_draft_in_an_unfinished_thought_is_paid_nothing(sandbox: Sandbox) -> None:
    begun = f"Let me see.\n{RIGHT}\nBut"
    assert CodeReward([task()], sandbox=sandbox)(
        [f"<think>\n{begun}", f"<think>\n{begun}\n</think>\n{WRONG}"], ["inc"] * 2
    ) == (pytest.approx([0.0, 0.1 + 0.9 / 3]))
    chat = task(prompt=({"role": "user", "content": "Add one."},))
    assert CodeReward([chat], sandbox=sandbox, prompt_opens_thought=True)(
        [begun, RIGHT, f"x</think>{RIGHT}"], ["inc"] * 3
    ) == (pytest.approx([0.0, 0.0, 1.0]))
    plain = task(prompt="Add one.\n<think>\n")
    assert CodeReward([plain], sandbox=sandbox)([begun], ["inc"]) == [0.0]


def test_an_empty_answer_below_a_head_is_no_program(sandbox: Sandbox) -> None:
    head = 'def f(x):\n    """Add one."""'
    reward = CodeReward([task(prompt=head, prefix=head)], sandbox=sandbox)
    assert reward(["", "\n\n", "\n    return x + 1"], ["inc"] * 3) == pytest.approx([0.0, 0.0, 1.0])


def test_bad_input_is_told() -> None:
    with pytest.raises(InputError, match=r"1 tasks have no hidden tests \(first: inc\)"):
        CodeReward([task(hidden_tests=())], tests="hidden", sandbox=Waiting())
    reward = CodeReward([task()], sandbox=Waiting())
    with pytest.raises(InputError, match="names task 'absent', which CodeReward was not given"):
        reward([RIGHT], ["absent"])
