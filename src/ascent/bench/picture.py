"""`ascent bench` as a picture: speed and memory of each stage."""

from __future__ import annotations

from xml.sax.saxutils import escape

from ascent.bench.figures import Bench, Measured
from ascent.bench.report import against
from ascent.memory.picture import opening, size

_WIDTH, _LEFT, _RIGHT = 940, 150, 560  # of the picture; the edges of the bars
_TOP, _STEP = 74, 52
_SPEED, _MEMORY = "#2563eb", "#94a3b8"


def svg(found: Bench) -> str:
    """It stands by itself. A stage has a bar of its tokens a second, and a thin one of its share of the memory."""
    measured = [stage for stage in found.stages if found.measured(stage.stage) is not None]
    lengths = found.sampled.lengths
    title = f"Sampling with {found.model} on {found.device}"
    note = (
        f"{len(lengths)} completions, {min(lengths)} to {max(lengths)} tokens, N = {found.rows}; "
        "blue: tokens a second, grey: memory, of all of it"
    )
    height = _TOP + _STEP * max(1, len(found.stages)) + 14
    parts = opening(title, note, _WIDTH, height)
    fastest = max((_rate(found, stage) for stage in measured), default=1.0)
    for place, stage in enumerate(found.stages):
        y = _TOP + _STEP * place
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(stage.stage)}</text>')
        parts += _bars(found, stage, y, fastest)
    return "\n".join([*parts, "</svg>", ""])


def _bars(found: Bench, stage: Measured, y: int, fastest: float) -> list[str]:
    figures = found.measured(stage.stage)
    if figures is None:
        return [f'<text x="{_LEFT}" y="{y + 16}" fill="#dc2626">not measured</text>']
    rate, share = _rate(found, stage), figures.memory_share
    told = f"{rate:.0f} tokens/s{against(found, stage.stage)}"
    memory = f"memory {share:.1%}, {size(max(each.peak_bytes for each in figures.repeats))}"
    fast, full = (_RIGHT - _LEFT) * rate / fastest, (_RIGHT - _LEFT) * share
    return [
        f'<rect x="{_LEFT}" y="{y}" width="{fast:.1f}" height="22" fill="{_SPEED}"/>',
        f'<text x="{_LEFT + fast + 8:.1f}" y="{y + 16}">{escape(told)}</text>',
        f'<rect x="{_LEFT}" y="{y + 26}" width="{full:.1f}" height="8" fill="{_MEMORY}"/>',
        f'<text x="{_LEFT + full + 8:.1f}" y="{y + 35}" font-size="11" fill-opacity="0.7">{escape(memory)}</text>',
    ]


def _rate(found: Bench, stage: Measured) -> float:
    figures = found.measured(stage.stage)
    assert figures is not None
    return found.sampled.tokens / figures.seconds
