"""Programs in colour. Pygments' own output is the only markup that is put into a page unescaped."""

from __future__ import annotations

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from ascent.report.page.visible_text import cut

_LEXERS = {"python": "python", "c": "c", "cpp": "cpp", "rust": "rust"}
_MOST_COLOURED = 30_000  # characters; lexers are made for what people write


def coloured(program: str, language: str) -> tuple[Markup, int]:
    """The program as spans (classes `k-...`), and how many characters are left out.

    Long programs and unknown languages stay without colour.
    """
    text, left_out = cut(program)
    if len(text) > _MOST_COLOURED or language not in _LEXERS:
        return escape(text), left_out
    lexer = get_lexer_by_name(_LEXERS[language], stripnl=False, ensurenl=False)
    spans = highlight(text, lexer, HtmlFormatter(nowrap=True, classprefix="k-"))
    return Markup(spans), left_out
