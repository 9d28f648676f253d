"""The pieces of judging that need no process: values as data, comparing, taking asserts apart, explaining."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.sandbox.asserts import decompose
from ascent.sandbox.inside.compare import holds, same
from ascent.sandbox.inside.compare_output import same_output
from ascent.sandbox.inside.values import MalformedError, Opaque, decode, encode, opaque, refuse

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=8)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=20,
)


def without_nan(value: Any) -> bool:
    return "nan" not in repr(value)


@given(VALUES)
def test_values_come_back_as_they_were_sent(value: Any) -> None:
    back = decode(encode(value, refuse))
    if without_nan(value):
        assert back == value
        assert same(back, value, None, False)
        assert same(back, value, None, True)
    assert type(back) is type(value)


@given(VALUES, VALUES)
def test_equal_by_our_rules_is_equal_by_pythons(one: Any, two: Any) -> None:
    if without_nan(one) and without_nan(two):
        if same(one, two, None, False):
            assert one == two
        if one != two:
            assert not same(one, two, None, False)


@given(st.lists(VALUES, max_size=5), st.randoms())
def test_order_matters_only_when_it_is_asked_for(values: list[Any], chance: Any) -> None:
    shuffled = list(values)
    chance.shuffle(shuffled)
    assert same(shuffled, values, None, True)


@given(st.binary(max_size=200))
def test_decoding_answers_a_value_or_one_error(data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        decode(data)


NODES = st.recursive(
    st.none()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["l", "t", "s", "f", "d", "i", "b", "c", "o", "y", "h"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=15,
)


@given(NODES)
def test_decoding_any_json_answers_a_value_or_one_error(node: Any) -> None:
    with contextlib.suppress(MalformedError):
        decode(json.dumps(node))


def test_only_builtin_types_travel_by_name() -> None:
    assert decode(encode(int, refuse)) is int
    for name in ("eval", "exec", "open", "__import__", "no_such"):
        with pytest.raises(MalformedError):
            decode(json.dumps(["y", name]))


def test_objects_are_equal_to_nothing() -> None:
    class Yes:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = object.__hash__

    thing = decode(encode(Yes(), opaque))
    assert isinstance(thing, Opaque)
    assert thing != thing
    assert not holds({"mode": "equal", "expected": 1}, thing)
    assert not holds({"mode": "equal", "expected": [1]}, [thing])
    assert holds({"mode": "truth", "expected": True}, thing)


@pytest.mark.parametrize(
    ("got", "expected", "same_text"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("1 2  \n3\n\n\n", "1 2\n3", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("1  2", "1 2", True),
        (" 1", "1", True),
        ("1\n\n2", "1\n2", False),
        ("1", "1\n2", False),
        ("1\n2\n3", "1\n2", False),
        ("", "1", False),
        ("", "", True),
        ("0.1", "0.10", True),
        ("1e3", "1000.0", True),
        ("1.0", "1", True),
        ("01", "1", False),
        ("0.3000000000001", "0.3", True),
        ("0.30001", "0.3", False),
        ("nan", "1.0", False),
        ("inf", "1e999", False),
        ("1e999", "1e998", False),
        ("1e5000", "inf", False),
        ("1e99999999999999999999", "1.0", False),
        ("0.333333", "0.333333333333", True),
        ("0.66667", "0.666666666666", False),
        ("123456.654321", "123456.6543209877", True),
        ("3", "3.0000004", True),
        ("1e-7", "0.0", True),
        ("-0.0", "0.0", True),
        ("1000000", "1000001", False),
        ("1000000.0", "1000001", False),
        ("1000000.0", "1000001.0", False),
        ("1e6", "1000001.0", False),
        ("1000001.4", "1000001.0", True),
        ("1e5", "100000", True),
        ("100000", "1e5", True),
        ("1e5", "100001", False),
        ("0.9999999999", "1", False),
        ("1.0000000000001", "1", False),
        ("9007199254740992.0", "9007199254740993", False),
        ("18014398509481985", "18014398509481984", False),
        ("True", "1", False),
        ("nan", "nan", True),
        ("nan", "0.5", False),
        ("inf", "1e300", False),
        ("0x10", "16", False),
        ("1_000", "1000", False),
        ("\u0967", "1", False),
        ("0.1 0.2 0.3", "0.1 0.2", False),
        ("0.1\n0.2", "0.1 0.2", False),
        ("\n\n1\n", "1", True),
        ("YES 0.3333333", "YES 0.3333333333", True),
        ("NO 0.3333333", "YES 0.3333333333", False),
        ("[0.1, 0.15000000000000002]", "[0.1, 0.15]", True),
        ("{'a': 0.30000000000000004}", "{'a': 0.3}", True),
        ("[1, 2]", "[1, 3]", False),
        ("[1000000, 1]", "[1000001, 1]", False),
        ("(0.1, 0.2)", "[0.1, 0.2]", False),
        ("[0.5", "[0.5]", False),
        ("abc", "ABC", False),
        ("YES", "YES ", True),
    ],
)
def test_printed_text_is_compared_by_lines_and_numbers_by_value(got: str, expected: str, same_text: bool) -> None:
    assert same_output(got, expected) is same_text


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "same_text"),
    [
        ("0.333333333", "0.3333333333", 0.0, False),
        ("0.33333333330", "0.3333333333", 0.0, True),
        ("1e3", "1000.0", 0.0, True),
        ("0.33", "0.3333", 0.01, True),
        ("0.30", "0.3333", 0.01, False),
        ("1001.0", "1000.0", 0.01, True),
        ("1001", "1000", 0.01, False),
        ("1000.5", "1000", 0.01, False),
    ],
)
def test_a_test_may_state_how_near_printed_floats_must_be(
    got: str, expected: str, tolerance: float, same_text: bool
) -> None:
    assert same_output(got, expected, tolerance) is same_text


@pytest.mark.parametrize(
    ("got", "expected", "alike"),
    [
        ((1, 2), [1, 2], True),
        ([1, (2, (3,))], [1, [2, [3]]], True),
        ((), [], True),
        ({1: 2, 3: (4,)}, {"1": 2, "3": [4]}, True),
        ({True: 1, None: 2, 0.5: 3}, {"true": 1, "null": 2, "0.5": 3}, True),
        ({1: 2, "1": 3}, {"1": 2, "2": 3}, False),
        (1.0, 1, True),
        (1, 1.0, True),
        ([0.1, 0.15000000000000002], [0.1, 0.15], True),
        (0.3001, 0.3, False),
        (0.9999999999, 1, False),
        (1000001.0, 1000000.0, False),
        (1000000, 1000001, False),
        (2.0**53, 2**53 + 1, False),
        (10**400, 1.5, False),
        (math.inf, 1e308, False),
        (math.nan, 0.5, False),
        (True, 1, False),
        (1, True, False),
        (True, True, True),
        ("1.0", "1", False),
        ("1", 1, False),
        (None, 0, False),
        ([1, 2], [1, 2, 3], False),
        ([[1]], [1], False),
        ("", [], False),
        ({1, 2}, [1, 2], False),
        (Opaque("Yes", True), [], False),
    ],
)
def test_what_json_can_tell_apart(got: Any, expected: Any, alike: bool) -> None:
    check = {"mode": "json", "expected": expected, "tolerance": None, "unordered": False}
    assert holds(check, got) is alike
    assert holds({**check, "or_in_list": True}, [got]) is alike


def test_json_values_may_be_asked_for_exactly_or_in_any_order() -> None:
    check = {"mode": "json", "expected": [0.3, 0.1], "tolerance": 0.0, "unordered": False}
    assert not holds(check, [0.1 + 0.2, 0.1])
    assert holds(check, (0.3, 0.1))
    assert holds({**check, "tolerance": None, "unordered": True}, (0.1, 0.1 + 0.2))
    assert not holds({**check, "tolerance": None, "unordered": True}, (0.3, 0.3))


def test_tolerance_is_relative_and_absolute_and_infinity_is_only_infinity() -> None:
    assert same(1e9 + 1, 1e9, 1e-6, False)
    assert same(1e-9, 0.0, 1e-6, False)
    assert not same(1e300, math.inf, 1e-6, False)
    assert same(math.inf, math.inf, 1e-6, False)
    assert same(10**400, 10**400, 1e-6, False)
    assert not same(10**400, 1.0, 1e-6, False)
    assert same([(1, 2.0000001)], [(1, 2.0)], 1e-6, False)
    assert not same(1000001, 1000000, 1e-6, False), "integers are equal or not"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("assert f(1) == 2", 1),
        ("assert 2 == f(1)", 1),
        ("assert f(1, k=[2]) == {'a': (1, 2)}", 1),
        ("assert f(1)", 1),
        ("assert not f(1)", 1),
        ("assert f(1) is None", 1),
        ("assert abs(f(1) - 2.5) < 1e-6", 1),
        ("assert f(-1) == 10**9 + 7", 1),
        ("assert f(1) == 2, 'message'\nassert True\nassert f(2) == 3", 2),
        ("def check(candidate):\n    'doc'\n    assert candidate(1) == 2\n    assert candidate(2) == 3\ncheck(f)", 2),
        ("METADATA = {}\ndef check(c):\n    assert c(1) == 2\ncheck(f)", 1),
        ("assert f(x) == 2", 0),
        ("x = 1\nassert f(x) == 2", 0),
        ("assert f(1) == f(2)", 0),
        ("assert f(1) != 2", 0),
        ("assert f(1) < 2", 0),
        ("assert len(f(1)) == 2", 0),
        ("assert f(*[1]) == 2", 0),
        ("assert f(**{'a': 1}) == 2", 0),
        ("assert f({**{}}) == 2", 0),
        ("assert f(1) == 2 or True", 0),
        ("assert f(1) is 2", 0),
        ("assert f(1) == math.pi", 0),
        ("assert obj.f(1) == 2", 0),
        ("for i in range(3): assert f(i) == i", 0),
        ("import os\nassert f(1) == 2", 0),
        ("assert f(1) == 2, g()", 0),
        ("@decorated\ndef check(c):\n    assert c(1) == 2\ncheck(f)", 0),
        ("def check(c):\n    assert c(1) == 2\ncheck(f)\ncheck(g)", 0),
        ("check(f)\ndef check(c):\n    assert c(1) == 2", 0),
        ("def check(c, d=1):\n    assert c(1) == 2\ncheck(f)", 0),
        ("assert True", 0),
        ("assert f(10**10**10) == 1", 0),
        ("assert f(" + "[" * 150 + "]" * 150 + ") == 1", 1),
    ],
)  # fmt: skip
def test_what_of_an_assert_becomes_a_call(code: str, count: int) -> None:
    assert len(decompose(code) or []) == count
