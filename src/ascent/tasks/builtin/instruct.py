"""Thirty tasks in plain English, five a family, for instruct models: small enough for one of 135 million
parameters to solve some of them, so that training has something to start from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ascent.sandbox.types import FunctionTest
from ascent.tasks.builtin.template import VISIBLE, Arguments, BuiltinTask
from ascent.types import Task


@dataclass(frozen=True)
class Exercise:
    """`signature` is to be written so that it does what `sentence` says. `function` computes the results of
    `inputs` without `solution`, which follows `return`, as do the typical mistakes `wrong`. The first inputs
    are visible."""

    family: str
    signature: str
    sentence: str
    solution: str
    wrong: tuple[str, ...]
    function: Callable[..., Any]
    inputs: tuple[Arguments, ...]


_PAIRS = ((1, 2), (10, -4), (7, 7), (0, 0), (-3, -8), (0, 5), (100, 1), (-6, 6), (2, 9))
_NUMBERS = ((3,), (8,), (-5,), (0,), (1,), (-1,), (2,), (-12,), (57,))
_COUNTS = ((3,), (5,), (1,), (0,), (2,), (4,), (7,), (8,), (10,))
_LISTS = (
    ([3, 1, 2],),
    ([5, -2, 9, 8],),
    ([-4, -7],),
    ([6],),
    ([0, 0],),
    ([2, 4, 6, 8, 5],),
    ([10, 1, 10, 1],),
    ([-1, 0, 1],),
    ([7, 3, 3, 12],),
)
_STRINGS = (("abc",), ("Hello",), ("level",), ("",), ("x",), ("a b",), ("Noon",), ("otto",), ("PyThOn 3",))
_DICTS: tuple[Arguments, ...] = (
    ({"a": 1, "b": 2},),
    ({"z": 5, "y": -3, "x": 0},),
    ({"k": 7},),
    ({},),
    ({"b": 4, "a": 9},),
    ({"m": 10, "c": 20, "d": 30},),
    ({"one": 1, "two": 2},),
    ({"q": -8, "e": 6},),
)

EXERCISES = (
    Exercise(
        "arithmetic",
        "add(a, b)",
        "returns the sum of a and b",
        "a + b",
        ("a - b", "a"),
        lambda a, b: a + b,
        _PAIRS,
    ),
    Exercise("arithmetic", "square(x)", "returns x times x", "x * x", ("x + x", "x"), lambda x: x**2, _NUMBERS),
    Exercise(
        "arithmetic",
        "average(a, b)",
        "returns the average of a and b",
        "(a + b) / 2",
        ("a + b / 2", "a + b", "(a + b) // 2"),
        lambda a, b: 0.5 * a + 0.5 * b,
        _PAIRS,
    ),
    Exercise(
        "arithmetic",
        "last_digit(n)",
        "returns the last digit of the non-negative integer n, as an integer",
        "n % 10",
        ("n // 10", "n"),
        lambda n: int(str(n)[-1]),
        ((12,), (7,), (340,), (0,), (99,), (10,), (1234,), (5,), (601,)),
    ),
    Exercise(
        "arithmetic",
        "distance(a, b)",
        "returns the absolute difference of a and b",
        "abs(a - b)",
        ("a - b", "abs(a + b)"),
        lambda a, b: max(a, b) - min(a, b),
        _PAIRS,
    ),
    Exercise(
        "lists",
        "largest(xs)",
        "returns the largest number in the list xs",
        "max(xs)",
        ("min(xs)", "xs[0]"),
        lambda xs: sorted(xs)[-1],
        _LISTS,
    ),
    Exercise(
        "lists",
        "total(xs)",
        "returns the sum of the numbers in the list xs",
        "sum(xs)",
        ("len(xs)", "xs[0] + xs[-1]"),
        sum,
        _LISTS,
    ),
    Exercise(
        "lists",
        "reverse_list(xs)",
        "returns the list xs in reverse order",
        "xs[::-1]",
        ("xs", "sorted(xs)", "xs.reverse()"),
        lambda xs: list(reversed(xs)),
        _LISTS,
    ),
    Exercise(
        "lists",
        "first_and_last(xs)",
        "returns a list with the first and the last item of the list xs",
        "[xs[0], xs[-1]]",
        ("xs[0], xs[-1]", "[xs[-1], xs[0]]"),
        lambda xs: [*xs[:1], *xs[-1:]],
        _LISTS,
    ),
    Exercise(
        "lists",
        "distinct(xs)",
        "returns a sorted list of the distinct numbers in the list xs",
        "sorted(set(xs))",
        ("sorted(xs)", "set(xs)"),
        lambda xs: sorted(dict.fromkeys(xs)),
        _LISTS,
    ),
    Exercise(
        "strings",
        "upper(s)",
        "returns the string s in upper case",
        "s.upper()",
        ("s.lower()", "s.capitalize()"),
        str.upper,
        _STRINGS,
    ),
    Exercise(
        "strings",
        "reverse_string(s)",
        "returns the string s reversed",
        "s[::-1]",
        ("s", "list(reversed(s))"),
        lambda s: "".join(reversed(s)),
        _STRINGS,
    ),
    Exercise(
        "strings",
        "is_palindrome(s)",
        "returns True if the string s reads the same forwards and backwards, otherwise False",
        "s == s[::-1]",
        ("True", "s[0] == s[1]"),
        lambda s: list(s) == list(reversed(s)),
        _STRINGS,
    ),
    Exercise(
        "strings",
        "count_letter(s, c)",
        "returns how often the letter c occurs in the string s",
        "s.count(c)",
        ("len(s)", "c in s", "s.find(c)"),
        lambda s, c: sum(1 for letter in s if letter == c),
        (
            ("banana", "a"),
            ("hello", "l"),
            ("abc", "z"),
            ("", "a"),
            ("Aa", "a"),
            ("zzz", "z"),
            ("x", "x"),
            ("no no", "o"),
            ("mississippi", "s"),
        ),
    ),
    Exercise(
        "strings",
        "first_word(s)",
        "returns the first word of the string s, where words are separated by spaces",
        "s.split()[0]",
        ("s[0]", "s.split()", "s.split()[-1]"),
        lambda s: s.partition(" ")[0],
        (
            ("hello world",),
            ("one two three",),
            ("single",),
            ("a b",),
            ("The end",),
            ("x y z",),
            ("Ab cd",),
            ("last  one",),
        ),
    ),
    Exercise(
        "conditionals",
        "is_even(n)",
        "returns True if the integer n is even, otherwise False",
        "n % 2 == 0",
        ("n % 2 == 1", "n % 2"),
        lambda n: not n & 1,
        _NUMBERS,
    ),
    Exercise(
        "conditionals",
        "larger(a, b)",
        "returns the larger of the numbers a and b",
        "a if a > b else b",
        ("a if a < b else b", "a", "a > b"),
        lambda a, b: sorted((a, b))[1],
        _PAIRS,
    ),
    Exercise(
        "conditionals",
        "sign(n)",
        "returns 1 if n is positive, -1 if n is negative, and 0 if n is zero",
        "1 if n > 0 else -1 if n < 0 else 0",
        ("1 if n > 0 else -1", "n", "1 if n > 0 else 0"),
        lambda n: (n > 0) - (n < 0),
        _NUMBERS,
    ),
    Exercise(
        "conditionals",
        "grade(score)",
        'returns "pass" if score is at least 50, otherwise "fail"',
        '"pass" if score >= 50 else "fail"',
        ('"pass" if score > 50 else "fail"', '"fail" if score >= 50 else "pass"', "score >= 50"),
        lambda score: "fail" if score < 50 else "pass",
        ((70,), (20,), (51,), (50,), (49,), (0,), (100,), (48,)),
    ),
    Exercise(
        "conditionals",
        "fizz(n)",
        'returns "Fizz" if n is divisible by 3, otherwise the number n',
        '"Fizz" if n % 3 == 0 else n',
        ('"Fizz" if n % 3 else n', '"Fizz"', '"Fizz" if n % 3 == 0 else str(n)'),
        lambda n: n if n % 3 else "Fizz",
        ((3,), (4,), (9,), (0,), (10,), (-6,), (1,), (31,), (30,)),
    ),
    Exercise(
        "loops",
        "sum_to(n)",
        "returns the sum of the integers from 1 to n",
        "sum(range(1, n + 1))",
        ("sum(range(n))", "n + 1", "n"),
        lambda n: n * (n + 1) // 2,
        _COUNTS,
    ),
    Exercise(
        "loops",
        "squares(n)",
        "returns a list of the squares of the integers from 0 to n - 1",
        "[i * i for i in range(n)]",
        ("[i * i for i in range(n + 1)]", "[i * 2 for i in range(n)]", "list(range(n))"),
        lambda n: [i**2 for i in range(n)],
        _COUNTS,
    ),
    Exercise(
        "loops",
        "count_even(xs)",
        "returns how many numbers in the list xs are even",
        "sum(1 for x in xs if x % 2 == 0)",
        ("len(xs)", "sum(x for x in xs if x % 2 == 0)", "[x for x in xs if x % 2 == 0]"),
        lambda xs: len([x for x in xs if not x & 1]),
        _LISTS,
    ),
    Exercise(
        "loops",
        "digit_sum(n)",
        "returns the sum of the digits of the non-negative integer n",
        "sum(int(digit) for digit in str(n))",
        ("len(str(n))", "n % 10", "n"),
        lambda n: sum(map(int, str(n))),
        ((12,), (345,), (9,), (0,), (10,), (99,), (1001,), (7,), (88,)),
    ),
    Exercise(
        "loops",
        "positives(xs)",
        "returns a list of the numbers in the list xs that are greater than 0",
        "[x for x in xs if x > 0]",
        ("[x for x in xs if x >= 0]", "xs", "[x for x in xs if x < 0]"),
        lambda xs: list(filter(lambda x: x > 0, xs)),
        _LISTS,
    ),
    Exercise(
        "dictionaries",
        "lookup(d, key)",
        "returns the value of key in the dictionary d, or 0 if the key is missing",
        "d.get(key, 0)",
        ("d[key]", "d.get(key)", "key in d"),
        lambda d, key: {key: 0, **d}[key],
        (
            ({"a": 3}, "a"),
            ({"a": 3}, "b"),
            ({"x": 1, "y": 2}, "y"),
            ({}, "a"),
            ({"k": -1}, "k"),
            ({"k": 5, "m": 6}, "z"),
            ({"p": 9}, "p"),
            ({"t": 0}, "t"),
        ),
    ),
    Exercise(
        "dictionaries",
        "sorted_keys(d)",
        "returns a sorted list of the keys of the dictionary d",
        "sorted(d)",
        ("list(d)", "sorted(d.values())", "d.keys()"),
        lambda d: sorted(key for key, _ in d.items()),
        _DICTS,
    ),
    Exercise(
        "dictionaries",
        "total_value(d)",
        "returns the sum of the values of the dictionary d",
        "sum(d.values())",
        ("len(d)", "list(d.values())", "sum(d)"),
        lambda d: sum(value for _, value in d.items()),
        _DICTS,
    ),
    Exercise(
        "dictionaries",
        "swap(d)",
        "returns a dictionary that maps each value of the dictionary d to its key",
        "{value: key for key, value in d.items()}",
        ("d", "{key: value for key, value in d.items()}", "list(d.items())"),
        lambda d: dict(zip(d.values(), d.keys(), strict=True)),
        _DICTS,
    ),
    Exercise(
        "dictionaries",
        "count_items(xs)",
        "returns a dictionary from each number in the list xs to how often it occurs",
        "{x: xs.count(x) for x in xs}",
        ("len(xs)", "{x: 1 for x in xs}", "set(xs)"),
        lambda xs: dict(Counter(xs)),
        _LISTS,
    ),
)


def instruct_tasks() -> tuple[BuiltinTask, ...]:
    """The thirty tasks, each with 3 visible and at least 5 hidden tests. They have no prefix: a completion is
    a whole program."""
    return tuple(_task(exercise) for exercise in EXERCISES)


def _task(exercise: Exercise) -> BuiltinTask:
    name = exercise.signature.partition("(")[0]
    head = f"def {exercise.signature}:\n    return "
    tests = tuple(FunctionTest(name, arguments, exercise.function(*arguments)) for arguments in exercise.inputs)
    task = Task(
        id=f"builtin/instruct/{name}",
        prompt=f"Write a Python function `{exercise.signature}` that {exercise.sentence}.",
        visible_tests=tests[:VISIBLE],
        hidden_tests=tests[VISIBLE:],
        entry_point=name,
        family=exercise.family,
        reference=f"{head}{exercise.solution}\n",
    )
    return BuiltinTask(task, f"instruct-{name}", (), 0, tuple(f"{head}{wrong}\n" for wrong in exercise.wrong))
