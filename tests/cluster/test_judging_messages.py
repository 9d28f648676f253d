"""What a run and its judges say to each other: nothing is lost on the way, and nothing but verdicts is taken."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, namedtuple
from dataclasses import asdict, fields
from typing import Any

import pytest

from ascent.cluster.judging.digests import TestDigests
from ascent.cluster.judging.messages import (
    About,
    Answer,
    Asked,
    MessageError,
    Request,
    digest,
    dump_about,
    dump_answer,
    dump_request,
    dump_tests,
    load_about,
    load_answer,
    load_request,
    load_tests,
)
from ascent.sandbox import AssertTest, FunctionTest, Limits, Outcome, Program, StdioTest, Verdict

TESTS = (
    FunctionTest("f", (1, "a", 2.5, None, True), [1, (2, 3), {4}, frozenset({5})]),
    FunctionTest("C.m", ({"k": (1,), 2: "x", (1, 2): b"\x00\xff"},), 10**40, kwargs={"n": -(10**30)}, tolerance=0.1),
    FunctionTest("f", ([3, 1],), None, unordered=True, mutated=([1, 3],), as_json=True, or_in_list=True),
    FunctionTest("f", (math.inf, -math.inf, 1j), int),
    StdioTest("3\n\ud800\n", "é\x00\n", tolerance=0.0),
    AssertTest("assert f(1) == 2", setup="import math", in_process=True),
)
VERDICT = Verdict(
    True,
    (Outcome.PASSED, Outcome.TAMPERED),
    0.25,
    cpu_seconds=0.125,
    output="\ud800 out",
    error="an error",
    level="confined",
    peak_bytes=4096,
)


def test_tests_come_back_as_they_were() -> None:
    assert load_tests(dump_tests(TESTS)) == TESTS
    assert {type(each) for each in load_tests(dump_tests(TESTS))} == {FunctionTest, StdioTest, AssertTest}
    assert load_tests(dump_tests(())) == ()
    nan = load_tests(dump_tests([FunctionTest("f", (math.nan,), math.nan)]))[0]
    assert isinstance(nan, FunctionTest)
    assert math.isnan(nan.expected)


def test_values_lose_what_is_no_data() -> None:
    """As the sandbox itself sees them."""
    point = namedtuple("point", "x y")
    (test,) = load_tests(dump_tests([FunctionTest("f", (point(1, 2), Counter("aab"), OrderedDict(a=1)), 0)]))
    assert isinstance(test, FunctionTest)
    assert test.args == ((1, 2), {"a": 2, "b": 1}, {"a": 1})
    assert [type(each) for each in test.args] == [tuple, dict, dict]
    with pytest.raises(TypeError, match="plain data"):
        dump_tests([FunctionTest("f", (object(),), 0)])


def test_equal_digests_are_of_equal_tests() -> None:
    digests = TestDigests()
    kept, first = digests.of(TESTS)
    assert kept == TESTS
    assert digests.of(list(TESTS))[1] == first
    assert digests.of(load_tests(dump_tests(TESTS)))[1] == first
    seen = {digests.of(tests)[1] for tests in ((), TESTS[:1], TESTS[1:2], TESTS[:2], TESTS[1::-1])}
    assert len(seen) == 5
    strict, listed = ((FunctionTest("f", (), value),) for value in ((1, 2), [1, 2]))
    assert digests.of(strict)[1] != digests.of(listed)[1]


def test_digests_of_objects_that_are_gone_arent_taken_for_those_of_new_ones() -> None:
    digests, seen = TestDigests(), set()
    for number in range(200):  # each may get the memory of the one before
        seen.add(digests.of([StdioTest("", str(number))])[1])
    assert len(seen) == 200


def test_requests_come_back_as_they_were() -> None:
    text = dump_tests(TESTS)
    asked = (
        Asked(Program("s = '\ud800'", "python", "import math"), digest(text), None, True),
        Asked(Program("int main() {}", "c"), "0" * 64, Limits(per_test_seconds=0.5, isolate_tests=True), False),
    )
    request = Request(asked, {digest(text): text})
    assert load_request(dump_request(request)) == request


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given["tests"].update({"0" * 64: "[]"}),
        lambda given: given["programs"][0].pop(),
        lambda given: given["programs"][0].__setitem__(0, None),
        lambda given: given["programs"][0].__setitem__(1, "perl"),
        lambda given: given["programs"][0].__setitem__(4, {"no_such_limit": 1}),
        lambda given: given.pop("tests"),
    ],
)
def test_a_wrong_request_is_refused(change: Any) -> None:
    given = json.loads(dump_request(Request((Asked(Program(""), digest("x"), None, False),), {digest("x"): "x"})))
    change(given)
    with pytest.raises(MessageError):
        load_request(json.dumps(given))


@pytest.mark.parametrize("text", ["", "[]", '[["d","kind","other"]]', '["l",["d","kind","stdio"]]', '["e","1"]'])
def test_what_isnt_tests_is_refused(text: str) -> None:
    with pytest.raises(MessageError):
        load_tests(text)


def test_verdicts_come_back_as_they_were() -> None:
    masked = Verdict(False, (Outcome.NOT_RUN,), 0.0, level="namespaced", infrastructure_error="the slot died")
    read = load_answer(dump_answer(Answer((VERDICT, masked))), [2, 1], "confined")
    assert read.verdicts == (VERDICT, masked)
    assert all(type(outcome) is Outcome for verdict in read.verdicts for outcome in verdict.outcomes)
    assert load_answer(dump_answer(Answer(missing=("a", "b"))), [2], "confined").missing == ("a", "b")


def set_in_verdict(name: str, value: Any) -> Any:
    return lambda given: given["verdicts"][0].__setitem__(name, value)


@pytest.mark.parametrize(
    "change",
    [
        set_in_verdict("outcomes", ["passed"]),
        set_in_verdict("outcomes", ["passed"] * 3),
        set_in_verdict("outcomes", ["passed", "won"]),
        set_in_verdict("outcomes", ["passed", ["passed"]]),
        set_in_verdict("outcomes", "passed"),
        set_in_verdict("level", "none"),
        set_in_verdict("level", "syscall-only"),
        set_in_verdict("level", "better"),
        set_in_verdict("level", ["namespaced"]),
        set_in_verdict("seconds", -1),
        set_in_verdict("seconds", math.nan),
        set_in_verdict("seconds", math.inf),
        set_in_verdict("cpu_seconds", "1"),
        set_in_verdict("peak_bytes", None),
        set_in_verdict("peak_bytes", True),
        set_in_verdict("compiled", 1),
        set_in_verdict("output", None),
        set_in_verdict("error", {"a": 1}),
        set_in_verdict("infrastructure_error", 0),
        lambda given: given["verdicts"][0].pop("error"),
        lambda given: given["verdicts"][0].update(more=1),
        lambda given: given["verdicts"].append(given["verdicts"][0]),
        lambda given: given["verdicts"].clear(),
        lambda given: given.update(verdicts={"0": given["verdicts"][0]}),
        lambda given: given.update(missing="abc"),
        lambda given: given.update(missing=[1]),
        lambda given: given.pop("missing"),
        lambda given: given.update(more=1),
    ],
)
def test_what_isnt_a_verdict_is_refused(change: Any) -> None:
    given = json.loads(dump_answer(Answer((VERDICT,))))
    change(given)
    with pytest.raises(MessageError):
        load_answer(json.dumps(given), [2], "confined")


@pytest.mark.parametrize("said", [None, b"{}", VERDICT, [asdict(VERDICT)], "", "nul", "[" * 100_000, '"text"', "[1]"])
def test_what_isnt_an_answer_is_refused(said: object) -> None:
    with pytest.raises(MessageError):
        load_answer(said, [2], "confined")
    with pytest.raises(MessageError):
        load_about(said)


def test_long_texts_are_cut() -> None:
    long = "x" * (1 << 20)
    given = {each.name: getattr(VERDICT, each.name) for each in fields(Verdict)} | {"output": long, "error": long}
    (read,) = load_answer(dump_answer(Answer((Verdict(**given),))), [2], "confined").verdicts
    assert len(read.output) == len(read.error or "") == 1 << 16


def test_about_comes_back_as_it_was() -> None:
    for about in (About(4, "confined"), About(0, "none", "level 'namespaced' was required")):
        assert load_about(dump_about(about)) == about
    with pytest.raises(MessageError, match="no level"):
        load_about('{"slots": 1, "level": "best", "error": ""}')
