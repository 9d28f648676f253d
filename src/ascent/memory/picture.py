"""A plan to look at: bars of each phase against the card's capacity, in the terminal and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from ascent.memory.cards import GIB, Card
from ascent.memory.phases import TERMS, Phase
from ascent.memory.plan import Plan

# one letter and one colour a term, in the order of TERMS
_LETTERS = dict(zip(TERMS, "WRGOMPCFALSEKwgTBr", strict=True))
_COLOURS = dict(
    zip(
        TERMS,
        (
            *(
                "#1d4ed8",
                "#60a5fa",
                "#b45309",
                "#f59e0b",
                "#2563eb",
                "#d97706",
                "#93c5fd",
                "#a78bfa",
                "#0f766e",
                "#5eead4",
                "#84cc16",
            ),
            *("#be185d", "#f472b6", "#fbcfe8", "#fda4af", "#94a3b8", "#cbd5e1", "#64748b"),
        ),
        strict=True,
    )
)
_BAR = 56  # characters that the card's memory takes
_BEYOND = 14  # and at most so many of what is more


def size(bytes_: float) -> str:
    """GiB, or MiB where that is less than a tenth of one."""
    return f"{bytes_ / GIB:.1f} GiB" if abs(bytes_) >= GIB / 10 else f"{bytes_ / 2**20:.1f} MiB"


def bars(made: Plan) -> list[str]:
    """Lines of text: a bar a phase, its letters' meaning, and where the card ends (`|`)."""
    used = {term for phase in (*made.phases, *made.server_phases) for term in phase.terms}
    lines = _bars("each device that trains", made.phases, made.card)
    if made.server_phases:
        lines += _bars("each device that only samples", made.server_phases, made.card)
    lines.append("")
    lines += [f"  {_LETTERS[term]}  {term}: {TERMS[term]}" for term in TERMS if term in used]
    return lines


def _bars(what: str, phases: Sequence[Phase], card: Card) -> list[str]:
    wide = max(len(phase.name) for phase in phases)
    lines = [f"{what}: {card.name}, {size(card.usable)} for programs"]
    for phase in phases:
        bar = _letters(phase, card)
        inside, beyond = bar[:_BAR].ljust(_BAR, "."), bar[_BAR:]
        beyond = beyond if len(beyond) <= _BEYOND else f"{beyond[: _BEYOND - 2]}>>"
        lines.append(f"  {phase.name:<{wide}} {inside}|{beyond} {size(phase.total)}, most of it {phase.largest}")
    return lines


def _letters(phase: Phase, card: Card) -> str:
    """Each term as many letters as its share of the card, rounded so that the bar's length is right."""
    bar, reached = "", 0.0
    for term in TERMS:
        reached += phase.terms.get(term, 0) * _BAR / card.usable
        bar += _LETTERS[term] * (round(reached) - len(bar))
    return bar


def svg(made: Plan) -> str:
    """The same as a picture that stands by itself."""
    rows = [*made.phases, *made.server_phases]
    widest = max(made.card.usable, *(phase.total for phase in rows))
    left, right, step, top = 150, 790, 34, 74
    scale = (right - left) / widest
    edge = left + made.card.usable * scale
    used = [term for term in TERMS if any(term in phase.terms for phase in rows)]
    height = top + step * len(rows) + 40 + 18 * -(-len(used) // 2)
    parts = opening(f"Memory of {made.model.name} on {made.card.name}", verdict_line(made), 940, height)
    for number, phase in enumerate(rows):
        y, x = top + step * number, float(left)
        server = number >= len(made.phases)
        name = f"{phase.name} (server)" if server else phase.name
        parts.append(f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        for term in TERMS:
            wide = phase.terms.get(term, 0) * scale
            if wide > 0:
                tip = escape(f"{term}: {size(phase.terms[term])}")
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="22" fill="{_COLOURS[term]}">'
                    f"<title>{tip}</title></rect>"
                )
                x += wide
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 15}">{size(phase.total)}</text>')
    end = top + step * len(rows)
    parts.append(
        f'<line x1="{edge:.1f}" x2="{edge:.1f}" y1="{top - 10}" y2="{end}" stroke="#dc2626" stroke-width="2"/>'
    )
    parts.append(
        f'<text x="{edge:.1f}" y="{top - 14}" text-anchor="middle" fill="#dc2626">{size(made.card.usable)}</text>'
    )
    for number, term in enumerate(used):
        x, y = 20 + 460 * (number % 2), end + 24 + 18 * (number // 2)
        parts.append(f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{_COLOURS[term]}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}" font-size="12">{escape(f"{term}: {TERMS[term]}")}</text>')
    return "\n".join([*parts, "</svg>", ""])


def opening(title: str, note: str, width: int, height: int) -> list[str]:
    """The first lines of a picture: white, with a title and a line below it. The caller closes it (`</svg>`)."""
    title, note = escape(title), escape(note)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#1f2933" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="26" font-size="16" font-weight="600">{title}</text>',
        f'<text x="20" y="46" font-size="12" fill-opacity="0.7">{note}</text>',
    ]


def verdict_line(made: Plan) -> str:
    """The answer in a sentence."""
    peak, usable = made.peak, made.card.usable
    between = f"{size(made.lower)} to {size(made.upper)} of {size(usable)}"
    if made.engine.short:
        what = (
            f"does not fit: the engine's share is {size(made.engine.short)} too small for its weights and one pass "
            f"(its weights: {size(made.engine.weights)})"
        )
        if made.lower <= usable:
            return what
    if made.verdict == "no":
        return (
            f"does not fit: {peak.name} takes {between}, most of it {peak.largest} ({size(peak.terms[peak.largest])})"
        )
    if made.verdict == "close":
        return f"close: {peak.name} takes {between}, most of it {peak.largest} ({size(peak.terms[peak.largest])})"
    return f"fits: {peak.name} takes most, {between}"
