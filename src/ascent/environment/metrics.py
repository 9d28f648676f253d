"""Rows of a training's metrics, whatever printed them: dicts, JSON, `key: value | ...`, tables; under common names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ascent.environment.log_scan import Line, Scan

_NUMBER = r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|-?nan|-?inf(?:inity)?)"
_PAIR = re.compile(
    rf"['\"]?([\w./%(][\w./%() -]{{0,79}})['\"]?\s{{0,20}}[:=]\s{{0,20}}(?:np\.\w+\(|tensor\()?"
    rf"['\"]?{_NUMBER}['\"]?(?=[,;|)\]}}\s]|$)",
    re.I,
)
# `step 5 loss 2.31`: a name that is known, and a number after it.
_BARE = re.compile(rf"\b(loss|grad[_ ]norm|reward|kl|entropy)\s{{1,9}}{_NUMBER}(?=[,;|\s]|$)", re.I)
_CELLS = re.compile(
    rf"^\s*[|│┃]\s*([\w./()%-](?:[\w./ ()%-]{{0,60}}[\w./()%-])?)\s*[|│┃]\s*{_NUMBER}\s*[|│┃]\s*$", re.I
)
_VALUE = re.compile(rf"{_NUMBER}%?", re.I)
_SPLIT = re.compile(r"\s*[|│┃,\t]\s*|\s{2,}")
_LONGEST = 4000

# What trainers call the same figure. The name is compared without the part before it ("train/", "actor/").
_NAMES: Mapping[str, str] = {
    "loss": r"(?:train(?:ing)?[ /_])?(?:lm[ _])?loss|loss/lm|ce[ _]loss|train/lm_loss",
    "policy_loss": r"(?:actor/)?(?:pg|policy)[_ ]loss|policy_gradient_loss|loss/policy(?:_avg)?",
    "grad_norm": r"(?:.*/)?grad(?:ient)?[ _]norm",
    "reward": r"(?:train/|objective/|rollout/|eval/|env/)?(?:mean_|avg_|raw_)?(?:rewards?|score)(?:[/_]mean)?"
    r"|critic/(?:rewards|score)/mean|objective/rlhf_reward",
    "reward_std": r"(?:train/|rollout/|critic/)?(?:group_)?rewards?(?:/|_)std(?:_mean)?",
    "all_alike": r"(?:train/)?frac_reward_zero_std|.*zero[_-](?:std|var).*(?:frac|ratio)\w*",
    "advantage_max": r"(?:.*/)?advantages?[/_]max",
    "advantage_min": r"(?:.*/)?advantages?[/_]min",
    "kl": r"(?:train/|objective/|policy/)?(?:approx_?)?kl(?:_divergence|_mean)?|actor/kl_loss|actor/ppo_kl",
    "entropy": r"(?:train/|actor/|policy/|objective/)?entropy(?:_loss|_avg|_mean)?",
    "cut": r"(?:train/)?completions/clipped_ratio|response_length/clip_ratio|(?:rollout/)?truncated_ratio",
    "length": r"response_length/mean|completions/mean_length|(?:mean_)?response_length(?:_mean)?|completion_length",
    "length_max": r"response_length/max|completions/max_length",
    "step_time": r"elapsed time per iteration \(ms\)|timing_s/step|step_time|time_per_(?:step|iteration)"
    r"|perf/time_per_step",
    "throughput": r"perf/throughput|throughput(?: \(.*\))?|tokens/s(?:ec)?(?:/\w+)?|tokens_per_sec\w*"
    r"|train_speed\(iter/s\)",
    "memory": r"perf/max_memory_(?:allocated|reserved)_gb|memory\(gib\)"
    r"|(?:peak_|max_)?mem(?:ory)?(?:_allocated|_reserved)?(?:_gb|_gib)?",
    "host_memory": r"perf/cpu_memory_used_gb|(?:cpu|host)_mem(?:ory)?\w*",
    "nan_iterations": r"number of nan iterations",
    "skipped_iterations": r"number of skipped iterations",
}
_KNOWN = {name: re.compile(shape, re.I) for name, shape in _NAMES.items()}
# Figures that only the training of a policy has: its loss is no loss of language.
_OF_A_POLICY = re.compile(r"reward|advantage|\bkl\b|kl_|clip|completion|score|policy|entropy|actor/|critic/", re.I)
LANGUAGE = "language_loss"

Row = tuple[int, dict[str, float]]


def numbers(text: str) -> dict[str, float]:
    """Name and value of every number that a line of metrics states."""
    text = text[:_LONGEST]
    found = {name.strip(" -"): _value(value) for name, value in _PAIR.findall(text)}
    return {**{name: _value(value) for name, value in _BARE.findall(text)}, **found}


def rows(scan: Scan) -> list[Row]:
    """The rows of the log in its order: number of the line, and its figures under common names where they have one.

    A loss in a row of a language model's training stands under `LANGUAGE` as well.
    """
    lines = {line.number: line for line in (*scan.start, *scan.series)}
    ordered = [lines[number] for number in sorted(lines)]
    stated = [(line.number, values) for line in ordered if (values := _of(line.text))]
    headed = list(_headed(ordered)) if not any("loss" in values for _, values in stated) else []
    policy = any(_OF_A_POLICY.search(name) for _, values in stated for name in values)
    return [(number, common(values, policy=policy)) for number, values in (*stated, *headed)]


def common(values: Mapping[str, float], *, policy: bool = False) -> dict[str, float]:
    """The figures, and those that have a common name under it besides."""
    found = dict(values)
    for stated, value in values.items():
        for name, shape in _KNOWN.items():
            if shape.fullmatch(stated):
                found.setdefault(name, value)
    if "loss" in found and not policy:
        found[LANGUAGE] = found["loss"]
    return found


def _of(text: str) -> dict[str, float]:
    cells = _CELLS.match(text[:400])
    return {cells[1].strip(): _value(cells[2])} if cells else numbers(text)


def _headed(lines: Sequence[Line]) -> Iterator[tuple[int, dict[str, float]]]:
    """Rows of tables that name their columns once, above them."""
    columns: list[str] = []
    for line in lines:
        cells = _cells(line.text[:1000])
        if len(cells) > 1 and any(shape.fullmatch(cell) for cell in cells for shape in _KNOWN.values()):
            columns = cells
        elif columns and len(cells) == len(columns):
            values = {
                name: _value(match[1])
                for name, cell in zip(columns, cells, strict=True)
                if (match := _VALUE.fullmatch(cell))
            }
            if len(values) > 1:
                yield line.number, values


def _cells(text: str) -> list[str]:
    text = text.strip().strip("|│┃").strip()
    cells = [cell for cell in _SPLIT.split(text) if cell]
    return cells if len(cells) > 1 else text.split()


def _value(text: str) -> float:
    return float(text)
