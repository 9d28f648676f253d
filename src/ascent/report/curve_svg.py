"""The learning curve as an SVG picture: pass rate of each step's completions, and of held-out tasks at both ends."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from ascent.report.results import HeldOutTask, Results, mean, smoothed

_WIDTH, _HEIGHT = 800, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 610, 56, 344  # the plot's edges; names of lines stand to its right
_INK, _GRID, _TRAINING, _SAMPLED, _GREEDY = "#1f2933", "#e3e8ee", "#2563eb", "#0f766e", "#b45309"
_LEAST_APART = 18  # pixels between two names


def curve_svg(results: Results) -> str:
    """The picture of a run that has at least one step."""
    rates = [step.pass_rate for step in results.steps]
    last = results.steps[-1].number
    window = max(1, len(rates) // 15) | 1
    lines = smoothed(rates, window)
    parts = [_axes(last), _polyline(results, rates, f'stroke="{_TRAINING}" stroke-opacity="0.25" stroke-width="1"')]
    parts.append(_polyline(results, lines, f'stroke="{_TRAINING}" stroke-width="2.5"'))
    ends = [(rate, f"training {rate:.0%}", _TRAINING) for rate in lines[-1:] if rate is not None]
    for kind, colour in (("sampled", _SAMPLED), ("greedy", _GREEDY)):
        drawn, end = _held_out(results, kind, colour, last)
        parts.append(drawn)
        ends += end
    parts.append(_names(ends))
    title = escape(f"Pass rate of {results.path.name}")
    note = f"training: completions that pass all tests, mean over {window} steps; held out: before and after"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="{_INK}" role="img">\n'
        f"<title>{title}</title>\n"
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n'
        f'<text x="{_LEFT}" y="24" font-size="16" font-weight="600">{title}</text>\n'
        f'<text x="{_LEFT}" y="42" font-size="12" fill-opacity="0.7">{note}</text>\n'
    )
    return head + "\n".join(part for part in parts if part) + "\n</svg>\n"


def _x(step: float, last: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * step / last


def _y(rate: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * rate


def _axes(last: int) -> str:
    parts = []
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for step in _ticks(last):
        x = _x(step, last)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 5}" stroke="{_INK}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 20}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 40}" text-anchor="middle">training step</text>')
    return "\n".join(parts)


def _ticks(last: int) -> list[int]:
    """Round numbers from 0, at most seven."""
    size = 1
    for size in (factor * 10**power for power in range(9) for factor in (1, 2, 5)):
        if last / size <= 6:
            break
    return list(range(0, last + 1, size))


def _polyline(results: Results, rates: Sequence[float | None], style: str) -> str:
    last = results.steps[-1].number
    points = [
        f"{_x(step.number, last):.1f},{_y(rate):.1f}"
        for step, rate in zip(results.steps, rates, strict=True)
        if rate is not None
    ]
    return f'<polyline points="{" ".join(points)}" fill="none" stroke-linejoin="round" {style}/>' if points else ""


def _held_out(results: Results, kind: str, colour: str, last: int) -> tuple[str, list[tuple[float, str, str]]]:
    """Dots before and after with a dashed line between them, and the name to put at the end."""

    def rate(tasks: Sequence[HeldOutTask]) -> float:
        return mean(getattr(task, kind) for task in tasks)

    ends = [(0, results.before), (last, results.after)]
    dots = [(_x(step, last), _y(rate(tasks))) for step, tasks in ends if tasks]
    parts = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>' for x, y in dots]
    if len(dots) == 2:
        (x1, y1), (x2, y2) = dots
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-dasharray="5 5"/>'
        )
    name = [(rate(results.after), f"held out, {kind} {rate(results.after):.0%}", colour)] if results.after else []
    return "\n".join(parts), name


def _names(ends: Sequence[tuple[float, str, str]]) -> str:
    """Names to the right of where their lines end, moved apart where they would overlap."""
    parts = []
    above = -float("inf")
    for rate, name, colour in sorted(ends, reverse=True):
        above = max(_y(rate) + 4, above + _LEAST_APART)
        parts.append(f'<text x="{_RIGHT + 12}" y="{above:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join(parts)
