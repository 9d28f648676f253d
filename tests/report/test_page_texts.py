"""The page in two languages: every text has its translation, and no translation lost what is put into it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
from ascent.report.page import charts, slow_steps
from ascent.report.page.app import TABS
from ascent.report.page.texts import language_of, texts_in

PAGE = Path(charts.__file__).parent
SPOKEN = re.compile(r"\b(?:_|say)\(\s*\"((?:[^\"\\]|\\.)*)\"")
OUTCOMES = ["passed", "failed", "error", "timeout", "memory", "forbidden", "tampered", "not_run"]
STATES = ["no step yet", "training", "silent", "evaluated", "failed", "ended", "critical", "warn", "info"]
TILES = ["length, tokens", "a step", "tokens/s", "pass rate", "reward"]


def spoken() -> set[str]:
    """Every English text that a page can show."""
    files = [*PAGE.glob("templates/*.html"), *PAGE.glob("*.py")]
    found = {text for path in files for text in SPOKEN.findall(path.read_text(encoding="utf-8"))}
    assert len(found) > 200
    names = {name for _, name in slow_steps._WITNESSES} | set(slow_steps.PHASES.values())
    return found | {text for text in charts.texts() if text} | names | set(TABS.values()) | {*OUTCOMES, *STATES, *TILES}


def test_every_text_is_translated() -> None:
    table = texts_in("zh").table
    assert not sorted(spoken() - set(table))
    assert not sorted(set(table) - spoken()), "a translation of what is no longer said"


def test_translations_keep_what_is_put_in() -> None:
    for english, chinese in texts_in("zh").table.items():
        assert sorted(re.findall(r"{\w+}", english)) == sorted(re.findall(r"{\w+}", chinese)), english
        assert chinese == english or not chinese.isascii(), english


def test_the_language_of_a_process() -> None:
    assert language_of({"LANG": "zh_CN.UTF-8"}) == "zh"
    assert language_of({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}) == "en"
    assert language_of({}) == "en"
    assert texts_in("fr")("No alarm.") == "No alarm."
    assert texts_in("zh")("step {step}", step=3) == "第 3 步"
