"""The page's words: English stands in code and templates, other languages in tables under `translations/`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

LANGUAGES = {"en": "English", "zh": "中文"}


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one language; called with the English one. A text that the table lacks stays English."""

    language: str
    table: Mapping[str, str]

    def __call__(self, english: str, /, **values: Any) -> str:
        """The text with `values` put in for the names in braces."""
        text = self.table.get(english, english)
        return text.format(**values) if values else text


@cache
def texts_in(language: str) -> Texts:
    """The texts of a language of `LANGUAGES`; English for any other."""
    if language not in LANGUAGES or language == "en":
        return Texts("en", {})
    table = resources.files(__package__).joinpath("translations", f"{language}.json").read_text(encoding="utf-8")
    return Texts(language, json.loads(table))


def language_of(environment: Mapping[str, str]) -> str:
    """The language that a process's variables ask for."""
    wanted = next((environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), "en")
    return wanted[:2] if wanted[:2] in LANGUAGES else "en"
