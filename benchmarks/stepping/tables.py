"""The tables of the documentation, made from what was kept."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from ascent.bench.training.ratio import Ratio
from stepping.figures import bound, steps_ratio, to_bound
from stepping.results import newest_rounds, read, result_file
from stepping.rounds import Round
from stepping.systems import DENSE, SAVINGS, SYSTEMS
from stepping.workloads import QUICKSTART, WORKLOADS

BEGIN, END = "<!-- steps: begin -->", "<!-- steps: end -->"
_PARTS = ("generate", "reward", "logps", "sync", "optimizer")
_TITLES = {
    "trl-transformers": "TRL, transformers samples",
    "trl-vllm": "TRL, vLLM samples",
    "ascent": "Ascent",
    "ascent-free": "Ascent, reward of no cost",
    "ascent-none": "Ascent, nothing saved",
}


def tables(folder: Path, *, kept: bool = True) -> str:
    """Everything that is there, in Markdown."""
    parts: list[str] = []
    for workload in (*WORKLOADS, QUICKSTART):
        runs = read(result_file(folder, workload, kept=kept))
        if rounds := newest_rounds(runs):
            last = runs[-1]
            place = f"{last['machine']['cpu']}, {last['machine']['cores']} cores; sources {last['code']}"
            parts += [f"**{workload}** ({len(rounds)} rounds; {place})", "", _systems(rounds), "", _ratios(rounds)]
            if saved := _savings(rounds):
                parts += ["", saved]
            parts.append("")
    if not kept and parts:
        parts.insert(0, "Measured on a machine that others use: not to be kept.\n")
    return "\n".join(parts).rstrip()


def write_between_marks(page: Path, table: str) -> None:
    """Replace what stands between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    if not tail:
        raise SystemExit(f"{page}: no {BEGIN} ... {END} in it")
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", encoding="utf-8")


def _systems(rounds: Sequence[Round]) -> str:
    """Medians. Seconds of the parts of a step; what is left of it is the update."""
    lines = [
        "| | step | samples/s | tokens/s | sampling | rewards | log-probs | update | sync | optimizer | peak MiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for system in SYSTEMS:
        found = [each[system] for each in rounds if system in each]
        if not found or system == DENSE:
            continue

        def median(name: str, found: Sequence[dict[str, float]] = found) -> float:
            return statistics.median(each[name] for each in found)

        update = statistics.median(each["step"] - sum(each[part] for part in _PARTS) for each in found)
        samples, tokens = (
            statistics.median(each[name] / each["step"] for each in found) for name in ("samples", "tokens")
        )
        times = (*(median(part) for part in _PARTS[:3]), update, *(median(part) for part in _PARTS[3:]))
        cells = [f"{median('step'):.2f}", f"{samples:.1f}", f"{tokens:.0f}", *(f"{each:.2f}" for each in times)]
        lines.append(f"| {_title(system)} | {' | '.join(cells)} | {median('peak_mib'):.0f} |")
    bounds = [bound(each) for each in rounds if "ascent" in each and DENSE in each]
    if bounds:
        lines.append(f"| the bound | {statistics.median(bounds):.2f} |" + " |" * 9)
    return "\n".join(lines)


def _ratios(rounds: Sequence[Round]) -> str:
    found: list[tuple[str, Ratio | None]] = [
        ("Ascent is faster than TRL with vLLM", steps_ratio(rounds, "trl-vllm", "ascent")),
        ("Ascent is faster than TRL with transformers", steps_ratio(rounds, "trl-transformers", "ascent")),
        ("Ascent takes of the bound", to_bound(rounds)),
        ("The reward makes a step longer", steps_ratio(rounds, "ascent", "ascent-free")),
    ]
    return "\n".join(f"- {text}: {value} times" for text, value in found if value is not None)


def _savings(rounds: Sequence[Round]) -> str:
    rows = [(system, steps_ratio(rounds, "ascent-none", system)) for system in SAVINGS if system != "ascent-none"]
    lines = [f"| {_title(system)} | {gain} |" for system, gain in rows if gain is not None]
    return "\n".join(["| saved | faster than with nothing saved |", "|---|---|", *lines]) if lines else ""


def _title(system: str) -> str:
    return _TITLES.get(system, f"Ascent, {system.partition('-')[2]} alone")
