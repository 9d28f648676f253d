"""What a run says about its own failure: the diagnosis of its traceback and log, appended to the error."""

from __future__ import annotations

from ascent.environment import codes, display
from ascent.environment.faults import diagnose_text


def explain_failure(text: str) -> str:
    """Cause and cure of a failure in a few lines, from its traceback and the end of its log.

    Empty when no entry knows it, so that nothing is added to an error that speaks for itself. Never raises.
    """
    reading = diagnose_text(text)
    primary = reading.primary
    if primary is None or primary.level == "note" or primary.confidence <= codes.HARDLY_ANYTHING:
        return ""
    lines = display.diagnosis(primary)
    others = [each.fault for each in reading.diagnoses if each.role == "also" and each.level != "note"]
    if others:
        lines.append(f"also seen: {', '.join(others[:4])} (ascent diagnose tells more)")
    return "\n".join(lines)
