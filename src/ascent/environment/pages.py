"""Pages of the documentation that are made from the data: `python -m ascent.environment.pages docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from ascent.environment import known_faults, rules, settings

_MADE = "<!-- Made from {data} by `python -m ascent.environment.pages docs`; don't edit. -->\n"
_KINDS = {
    "variable": "environment variable",
    "vllm": "vLLM argument",
    "torch": "Python",
    "trl": "TRL argument",
    "system": "file or system setting",
}
_LAYERS = {
    "A1": "The host",
    "A2": "Driver and devices",
    "A3": "CANN and NNAL",
    "A4": "Packages",
    "A5": "Settings",
    "A6": "Pasted reports",
    "A7": "Models (`ascent check-model`)",
    "A8": "Smoke test (`ascent doctor --run`)",
    "A9": "Several machines (`ascent cluster check`)",
}


def settings_page() -> str:
    """docs/settings.md."""
    lines = [_MADE.format(data="src/ascent/environment/data/settings.toml"), "# What became of it\n"]
    lines.append(
        "Settings that circulate in tutorials for training on Ascend, and what is true of each today. "
        "`ascent doctor --explain NAME` prints one of them; other spellings are found too.\n"
    )
    lines += ["| setting | what it is | does it do anything? | use instead |", "|---|---|---|---|"]
    for entry in settings.load().values():
        stands = "yes" if entry.exists else "no"
        lines.append(f"| `{entry.name}` | {_KINDS[entry.kind]} | {stands} | {_cell(entry.use_instead)} |")
    for entry in settings.load().values():
        lines += [
            f"\n## {entry.name}\n",
            f"{_KINDS[entry.kind].capitalize()}; seen in: {entry.seen}.\n",
            f"{entry.answer}.\n",
        ]
        lines.append(f"**Use:** {entry.use_instead}.")
        if entry.aliases:
            lines.append(f"\nAlso looked for as: {', '.join(f'`{alias}`' for alias in entry.aliases)}.")
    return "\n".join(lines) + "\n"


def rules_page() -> str:
    """docs/rules.md."""
    lines = [_MADE.format(data="src/ascent/environment/data/rules"), "# Rules of `ascent doctor`\n"]
    lines.append(
        "Every finding carries the number of a rule. "
        "`error`: it will fail. `warning`: it will hurt in some uses. "
        "`note`: worth knowing. `ok`: checked and right.\n"
    )
    layer = ""
    for rule in rules.load().values():
        if rule.number[:2] != layer:
            layer = rule.number[:2]
            lines.append(f"## {_LAYERS[layer]}\n")
        lines += [
            f"### {rule.number}: {rule.title}\n",
            f"Levels: {', '.join(rule.levels)}.\n",
            f"{rule.why}\n",
            "What to do:\n",
        ]
        lines += [f"{index}. {step}" for index, step in enumerate(rule.mend, 1)]
        lines.append(f"\nSource: {rule.source}.\n")
    return "\n".join(lines).rstrip() + "\n"


def faults_page() -> str:
    """docs/faults.md."""
    known = sorted(known_faults.load(), key=lambda fault: fault.id)
    lines = [
        _MADE.format(data="src/ascent/environment/data/faults"),
        "# Faults that `ascent diagnose` knows\n",
    ]
    lines.append(
        f"{len(known)} entries. The rank orders the faults of one log: "
        "the highest is the primary cause, those that it explains follow from it.\n"
    )
    for fault in known:
        lines += [
            f"## {fault.id}\n",
            f"Level {fault.level}, rank {fault.rank}, confidence {fault.confidence:.0%}.\n",
            f"{fault.cause}\n",
        ]
        lines += [f"{index}. {step}" for index, step in enumerate(fault.mend, 1)]
        lines.append("\nSeen as:\n")
        lines += ["- " + " together with ".join(f"`{pattern.text}`" for pattern in every) for every in fault.when]
        if fault.hides:
            lines.append(f"\nExplains: {', '.join(fault.hides)}.")
        lines.append(f"\nSource: {fault.source}.\n")
    return "\n".join(lines).rstrip() + "\n"


PAGES = {"settings.md": settings_page, "rules.md": rules_page, "faults.md": faults_page}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the pages into a folder."""
    if len(arguments) != 1:
        print("usage: python -m ascent.environment.pages FOLDER", file=sys.stderr)
        return 2
    for name, make in PAGES.items():
        Path(arguments[0], name).write_text(make(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
