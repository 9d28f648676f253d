"""`ascent sandbox` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascent.cli import main

pytestmark = pytest.mark.timeout(1800)
TESTS = [
    {"kind": "function", "function": "f", "args": [2], "expected": 4},
    {"kind": "assert", "code": "for n in range(3):\n    assert f(n) == 2 * n"},
    {"kind": "function", "function": "f", "args": [{"$tuple": [1]}], "expected": {"$tuple": [1, 1]}},
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    program, tests = tmp_path / "program.py", tmp_path / "tests.json"
    program.write_text("print('\\x1b[31mred')\ndef f(n):\n    return n * 2\n")
    tests.write_text(json.dumps(TESTS))
    return str(program), str(tests)


def test_run_judges_a_file(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "run", files[0], "--tests", files[1]]) == 0
    told = capsys.readouterr().out
    assert "3 of 3 tests passed" in told
    assert "\x1b" not in told
    Path(files[0]).write_text("def f(n): return n")
    assert main(["sandbox", "run", files[0], "--tests", files[1], "--json"]) == 1
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["schema"] == "ascent.sandbox.run/1"
    assert answer["outcomes"] == ["failed", "failed", "failed"]
    assert answer["error"] == "f returned 2"
    assert "0 of 3 tests passed" in err


def test_run_without_tests_says_whether_it_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "a.py"
    program.write_text("1 / 0")
    assert main(["sandbox", "run", str(program)]) == 0
    program.write_text("1 /")
    assert main(["sandbox", "run", str(program)]) == 1
    assert "SyntaxError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("[{}]", "tests[0]: key 'kind' is missing"),
        ('[{"kind": "fun"}]', "tests[0]: 'kind' must be one of function, stdio, assert, not 'fun'"),
        ('{"kind": "function"}', "must be a list"),
        ("[", "not valid JSON"),
        ('[{"kind": "assert", "code": "assert ("}]', "test 0: its code isn't Python"),
        ('[{"kind": "assert", "code": "assert 1", "in_process": true}]', "allow_in_process"),
    ],
)
def test_wrong_tests_are_named(
    files: tuple[str, str], tests: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(files[1]).write_text(tests)
    assert main(["sandbox", "run", files[0], "--tests", files[1]]) == 2
    assert words in capsys.readouterr().err


def test_wrong_files_are_named(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "run", str(tmp_path / "no.py")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["sandbox", "run", files[1]]) == 2
    assert "can't tell the language from '.json'" in capsys.readouterr().err
    assert main(["sandbox", "run", files[0], "--seconds", "0"]) == 2
    assert "--seconds must be above 0" in capsys.readouterr().err


def test_check_names_layers_and_languages(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["sandbox", "check", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "ascent.sandbox.check/1"
    assert code == (0 if answer["good"] else 1)
    assert set(answer["layers"]) == {"limits", "user", "namespaces", "landlock", "seccomp"}
    assert answer["languages"]["python"]["works"]
    assert all(layer["active"] or layer["reason"] for layer in answer["layers"].values())


def test_attack_reports_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sandbox", "attack", "--level", "confined", "--kind", "leaving early", "--json"]
    assert main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["level"], answer["good"]) == ("ascent.sandbox.attack/1", "confined", True)
    assert len(answer["attacks"]) >= 15
    assert main(["sandbox", "attack", "--kind", "nonsense"]) == 2
    assert "expected one of: attacking the judge" in capsys.readouterr().err


def test_attack_finds_what_gets_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "attack", "--level", "none", "--kind", "stealing"]) == 1
    assert "stealing, reads a file: did or read what it must not" in capsys.readouterr().out
