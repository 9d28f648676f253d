"""Templates to HTML. Every text that a template shows is made visible and escaped, unless it is markup of our own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from ascent.report.page.texts import LANGUAGES, texts_in
from ascent.report.page.visible_text import cut, first_line, in_a_line, visible

DASH = "–"
_MOST = 1_000_000  # characters of anything: what can be long is cut where it is shown


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ascent.report.page"),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "seconds": seconds,
        "figure": figure,
        "signed": signed,
        "first_line": first_line,
        "in_a_line": in_a_line,
        "cut": cut,
        "data": data_block,
    }
    environment.globals |= {"languages": LANGUAGES, "dash": DASH}
    return environment


def render(template: str, language: str, context: Mapping[str, Any]) -> str:
    """A page, or a part of one."""
    say = texts_in(language)
    return _environment().get_template(template).render({"_": say, "language": say.language, **context})


def percent(value: float | None, digits: int = 0) -> str:
    """A share as text."""
    return DASH if value is None else f"{100 * value:.{digits}f} %"


def seconds(value: float | None) -> str:
    """A duration as text: 0.42 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if value is None:
        return DASH
    if value < 10:
        return f"{value:.2g} s" if value < 1 else f"{value:.1f} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def figure(value: float | None, digits: int = 3) -> str:
    """A number as text."""
    if value is None:
        return DASH
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.{digits}g}"
    return f"{value:,.{digits}g}" if 1e-4 < abs(value) < 10**digits else _plain(value, digits)


def signed(value: float | None, digits: int = 3) -> str:
    """A number with its sign."""
    return DASH if value is None else f"{value:+.{digits}f}"


def data_block(value: Any) -> Markup:
    """JSON that may stand in a `<script type="application/json">`: no character of it can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _plain(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits - 1}e}"


def _shown(value: Any) -> Any:
    """What templates put out: texts with their controls written out. Markup is our own and goes as it is."""
    if value is None:
        return DASH
    return visible(value[:_MOST]) if isinstance(value, str) and not isinstance(value, Markup) else value
