"""A simulation as an SVG picture: communication's shares, and seconds of a weight update, over the cards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from ascent.cluster.simulation.asked import Simulated
from ascent.cluster.simulation.points import Point

_WIDTH, _HEIGHT = 940, 420
_TOP, _BOTTOM = 84, 350
_WIDE = 290  # of each plot; names of lines stand to its right
_INK, _GRID = "#1f2933", "#e3e8ee"
_LEAST_APART = 16  # pixels between two names


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    colour: str
    value: Callable[[Point], float]


_SHARES = (
    _Line("whole copies", "#2563eb", lambda each: each.ddp_share),
    _Line("pieces (FSDP)", "#b45309", lambda each: each.fsdp_share),
    _Line("decoding (TP)", "#0f766e", lambda each: each.tp_share),
)
_WEIGHTS = (
    _Line("http, one source", "#be185d", lambda each: each.weights_http),
    _Line("http, passed on", "#b45309", lambda each: each.weights_by_rounds),
    _Line("the least by http", "#0f766e", lambda each: each.weights_relayed),
    _Line("collective", "#2563eb", lambda each: each.weights_collective),
)


def svg(made: Simulated) -> str:
    """The picture. One number of cards gives dots."""
    title = escape(f"{made.workload.name} on {made.card}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="{_INK}" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="50" y="26" font-size="16" font-weight="600">{title}</text>',
        '<text x="50" y="46" fill-opacity="0.7">simulated; upper bounds without overlap</text>',
    ]
    top = max(0.1, *(line.value(each) for line in _SHARES for each in made.points))
    share_top = math.ceil(top * 10) / 10
    parts += _plot(
        50, "communication's share", made.points, _SHARES, lambda value: value / share_top, _percents(share_top)
    )
    seconds = [line.value(each) for line in _WEIGHTS for each in made.points]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    high = max(high, low + 1)
    ticks = [(f"{10.0**power:g} s", (power - low) / (high - low)) for power in range(low, high + 1)]

    def height(value: float) -> float:
        return (math.log10(value) - low) / (high - low)

    parts += _plot(520, "seconds of a weight update", made.points, _WEIGHTS, height, ticks)
    return "\n".join([*parts, "</svg>", ""])


def _plot(
    left: int,
    title: str,
    points: Sequence[Point],
    lines: Sequence[_Line],
    height: Callable[[float], float],
    ticks: Sequence[tuple[str, float]],
) -> list[str]:
    """One plot: cards to the right (logarithmic), `height` of a value from 0 (bottom) to 1 (top)."""
    first, last = math.log(points[0].cards), math.log(points[-1].cards)

    def x(cards: int) -> float:
        return left + _WIDE * ((math.log(cards) - first) / (last - first) if last > first else 0.5)

    def y(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * share

    parts = [f'<text x="{left}" y="70" font-weight="600">{title}</text>']
    for name, share in ticks:
        at = y(share)
        parts.append(f'<line x1="{left}" x2="{left + _WIDE}" y1="{at:.1f}" y2="{at:.1f}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{name}</text>')
    for each in points:
        parts.append(f'<text x="{x(each.cards):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{each.cards}</text>')
    parts.append(f'<text x="{left + _WIDE / 2}" y="{_BOTTOM + 40}" text-anchor="middle">cards</text>')
    ends = []
    for line in lines:
        places = [(x(each.cards), y(height(line.value(each)))) for each in points]
        drawn = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{line.colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{line.colour}"/>' for across, down in places]
        ends.append((places[-1][1], line))
    lowest = -math.inf
    for down, line in sorted(ends, key=lambda end: end[0]):
        lowest = max(down + 4, lowest + _LEAST_APART)
        parts.append(f'<text x="{left + _WIDE + 10}" y="{lowest:.1f}" fill="{line.colour}">{line.name}</text>')
    return parts


def _percents(top: float) -> list[tuple[str, float]]:
    step = 0.1 if top <= 0.5 else 0.2
    return [(f"{count * step:.0%}", count * step / top) for count in range(int(top / step + 1e-9) + 1)]
