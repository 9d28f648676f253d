"""What became of settings that circulate in tutorials (`data/settings.toml`)."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Setting:
    """A setting that people look for: whether it does anything, what it really is, what to use today."""

    name: str
    kind: str
    exists: bool
    answer: str
    use_instead: str
    aliases: tuple[str, ...]
    seen: str


@functools.cache
def load() -> dict[str, Setting]:
    """All settings by name."""
    text = resources.files("ascent.environment").joinpath("data/settings.toml").read_text("utf-8")
    return {
        name: Setting(
            name,
            each["kind"],
            each["exists"],
            each["answer"],
            each["use_instead"],
            tuple(each["aliases"]),
            each["seen"],
        )
        for name, each in tomllib.loads(text).items()
    }


def explain(name: str) -> Setting | None:
    """The entry for a name or one of its other spellings, case and punctuation aside."""
    wanted = _plain(name)
    for setting in load().values():
        if wanted in {_plain(each) for each in (setting.name, *setting.aliases)}:
            return setting
    return None


def nearest(name: str) -> list[str]:
    """Known names that resemble one that isn't known."""
    known = {each: setting.name for setting in load().values() for each in (setting.name, *setting.aliases)}
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return list(dict.fromkeys(known[each] for each in close))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())
