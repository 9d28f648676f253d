"""The experiment's report: what is complete, each arm's figures, and the paired differences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gaming.arms import ARMS, CHOOSING_SEEDS
from gaming.figures import Cell, end, gap, interval, last_metric, paired, peak, truth_at

_PAIRS = (("gpro", "kl"), ("gpro", "turned"), ("gpro", "grpo"), ("gpro", "rate"), ("kl", "grpo"), ("published", "grpo"))

_FIGURES = (
    *("truth", "proxy", "gap", "peak truth"),
    *("KL to the start", "entropy", "gradient norm", "minutes", "hacks"),
)


def report(cells: Sequence[Cell], chosen: Mapping[str, float | None]) -> str:
    """Markdown."""
    final = _final(cells, chosen)
    lines = ["**Strengths** (mean held-out truth on the choosing seeds)", "", "| arm | strength | truth | seeds |"]
    lines += ["|---|---|---|---|", *_choosing(cells, chosen), ""]
    lines += ["**After the last step** (held-out tasks, sampled; mean over seeds)", ""]
    lines += [f"| {' | '.join(('arm', 'seeds', *_FIGURES))} |", "|" + "---|" * (2 + len(_FIGURES))]
    lines += [*(_row(name, of) for name, of in final.items() if of), ""]
    lines += ["**Differences** (paired by seed, 95 % t interval)", "", *_differences(final)]
    return "\n".join(lines)


def _final(cells: Sequence[Cell], chosen: Mapping[str, float | None]) -> dict[str, dict[int, Cell]]:
    """Arm -> seed -> the cell with the chosen strength."""
    found: dict[str, dict[int, Cell]] = {name: {} for name in ARMS}
    for cell in cells:
        if cell["seed"] not in CHOOSING_SEEDS and cell["strength"] == chosen[cell["arm"]]:
            found[cell["arm"]][cell["seed"]] = cell
    return found


def _choosing(cells: Sequence[Cell], chosen: Mapping[str, float | None]) -> list[str]:
    rates: dict[tuple[str, float], list[float]] = defaultdict(list)
    for cell in cells:
        if cell["seed"] in CHOOSING_SEEDS:
            rates[cell["arm"], cell["strength"]].append(end(cell))
    return [
        f"| {arm} | {strength:g}{' (taken)' if chosen[arm] == strength else ''} | {sum(found) / len(found):.3f} "
        f"| {len(found)} of {len(CHOOSING_SEEDS)} |"
        for (arm, strength), found in sorted(rates.items())
    ]


def _row(name: str, cells: Mapping[int, Cell]) -> str:
    def mean(figure: Any) -> str:
        values = [value for value in map(figure, cells.values()) if value is not None]
        return f"{sum(values) / len(values):.3f}" if values else ""

    hacks: Counter[str] = Counter()
    for cell in cells.values():
        hacks.update(cell["held_out"][-1]["hacks"])
    figures = (
        mean(end),
        mean(lambda cell: end(cell, "proxy")),
        mean(gap),
        mean(peak),
        mean(lambda cell: cell["divergence"]),
        mean(lambda cell: last_metric(cell, "entropy")),
        mean(lambda cell: last_metric(cell, "grad_norm")),
        mean(lambda cell: cell["seconds"] / 60),
        ", ".join(f"{hack} {count}" for hack, count in hacks.most_common(3)),
    )
    return f"| {ARMS[name].what} | {len(cells)} | {' | '.join(figures)} |"


def _differences(final: Mapping[str, Mapping[int, Cell]]) -> list[str]:
    lines = []
    for one, other in _PAIRS:
        primary = " (primary)" if (one, other) == ("gpro", "kl") else ""
        found = paired(final[one], final[other])
        if found is None:
            lines.append(f"- {one} - {other}{primary}: no seed has both")
            continue
        proxy = min(
            max(each["proxy"] for each in cell["held_out"]) for cell in (*final[one].values(), *final[other].values())
        )
        at_equal = paired(final[one], final[other], lambda cell, proxy=proxy: truth_at(cell, proxy))
        lines.append(
            f"- {one} - {other}{primary}: truth {found}; gap {paired(final[one], final[other], gap)}; "
            f"truth at proxy {proxy:.2f}: {at_equal}"
        )
    early = {seed: cell for seed, cell in final["grpo"].items() if seed in final["gpro"]}
    if early:
        differences = [end(final["gpro"][seed]) - peak(cell) for seed, cell in early.items()]
        lines.append(f"- gpro - GRPO stopped at its best (an oracle): truth {interval(differences)}")
    return lines
