"""An alarm in words, for a terminal. Texts of the policy are shown without what could steer the terminal."""

from __future__ import annotations

from ascent.alarms.alarm import Alarm, Sample

_LINES, _WIDTH = 12, 160  # of a sample's program


def alarm_text(alarm: Alarm, *, samples: int = 5) -> str:
    """Several lines: what was seen, since when, how sure, what to change, and so many samples."""
    lines = [
        f"ALARM {alarm.name} ({alarm.level}) at step {alarm.step}, since step {alarm.since}: {alarm.what}",
        f"  how sure: {alarm.sure}",
        *(f"  mend: {mend}" for mend in alarm.mend),
    ]
    for sample in alarm.evidence[:samples]:
        lines += _sample_lines(sample)
    return "\n".join(map(printable, lines))


def printable(text: str) -> str:
    """Without the characters by which a text could steer the terminal or turn its direction."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def _sample_lines(sample: Sample) -> list[str]:
    reward = "no reward" if sample.reward is None else f"reward {sample.reward:.3g}"
    outcomes = [*sample.outcomes, *sample.audit]
    passed = f", {outcomes.count('passed')} of {len(outcomes)} tests passed" if outcomes else ""
    names = f", {', '.join(sample.markers)}" if sample.markers else ""
    text = (sample.program or sample.completion).strip("\n").split("\n")
    shown = [line if len(line) <= _WIDTH else f"{line[:_WIDTH]} ..." for line in text[:_LINES]]
    rest = [f"... {len(text) - _LINES} more lines"] if len(text) > _LINES else []
    head = f"  sample {sample.sample_id}, task {sample.task_id}, step {sample.step}: {reward}{passed}{names}"
    return [head, *(f"    | {line}" for line in (*shown, *rest))]
