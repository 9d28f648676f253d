"""Readings of a series of figures that no single line shows: memory that runs out, a full cache, a spoilt update."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import median

from ascent.environment.log_scan import Line, Scan
from ascent.environment.metrics import LANGUAGE

_UNITS = {"": 1.0, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_STATE = r"free|available|used|allocated|reserved|in[ _]use"
_MEMORY = re.compile(
    rf"(?P<what>(?:{_STATE}|total)?[ _/-]?(?:npu|gpu|device|hbm|cuda|host)?[ _/-]?mem(?:ory)?"
    rf"(?:[ _/-](?:{_STATE}|usage|left))?)['\"]?(?: \(?(?:on|of|after|before|at)[^:=]{{0,40}}\)?)?"
    r"\s*(?:is|:|=)\s*(?P<value>\d+(?:\.\d+)?) ?(?P<unit>[KMGT]?)i?B\b",
    re.IGNORECASE,
)
_CACHE = re.compile(r"KV cache usage: (\d+(?:\.\d+)?)%")
_WAITING = re.compile(r"(?:Waiting|Pending): (\d+)")
_RUNS_NONE = re.compile(r"Running: 0\b")
_TOKENS = re.compile(r"throughput: *(\d+(?:\.\d+)?) *tokens/s")
_RUNS_SOME = re.compile(r"Running: [1-9]")
_STARTS = re.compile(
    r"vLLM API server version|Starting vLLM API server|Initializing a V1 LLM engine|Initializing an LLM engine"
    r"|vllm serve "
)
_READY = re.compile(
    r"Application startup complete|Uvicorn running|HTTP/1|throughput|Processed prompts|Generated text|Route: /"
    r"|Available routes|init engine .* took|train_runtime|'loss'|Shutting down"
)
_LEAST, _LEAST_FULL = 4, 3
_FULL_PERCENT, _BRIM_PERCENT = 97.0, 99.9
_STEADY = 0.5  # the smallest change of a steady series is at least this share of its largest
_LEAK_SHARE = 0.004  # of the first value, a cycle
_JUMP, _STAYS = 20.0, 8.0
_SPIKE, _SPIKE_STAYS = 1.8, 1.4
_GOOD_REWARD, _HIGH_KL = 0.1, 5.0

Rows = Sequence[tuple[int, Mapping[str, float]]]


def read(scan: Scan, rows: Rows) -> dict[str, int]:
    """The readings that hold, each with the number of a line that shows it. ``rows`` are the metrics of the log."""
    found: dict[str, int] = {}
    _leaks(scan.gauges, found)
    _full_cache(scan.gauges, found)
    _no_tokens(scan.gauges, found)
    _collapse(rows, found)
    _cut_off(scan, found)
    return found


def _leaks(series: Sequence[Line], found: dict[str, int]) -> None:
    values: dict[str, list[tuple[int, float]]] = {}
    for line in series:
        for match in _MEMORY.finditer(line.text[:2000]):
            what = re.sub(r"[\W_]+", " ", match["what"].lower()).strip()
            values.setdefault(what, []).append((line.number, float(match["value"]) * _UNITS[match["unit"].upper()]))
    for what, each in values.items():
        falling = "free" in what or "available" in what or "left" in what
        if "total" not in what and _steady([value for _, value in each], falling=falling):
            found.setdefault("memory-falls-steadily", each[-1][0])


def _steady(values: Sequence[float], *, falling: bool) -> bool:
    """Whether a series goes one way by about the same amount each time."""
    changes = [before - after if falling else after - before for before, after in pairwise(values)]
    if len(values) < _LEAST or not values[0]:
        return False
    smallest, largest = min(changes), max(changes)
    return smallest >= _STEADY * largest > 0 and median(changes) > _LEAK_SHARE * values[0]


def _full_cache(series: Sequence[Line], found: dict[str, int]) -> None:
    usages = [(line, float(match[1])) for line in series if (match := _CACHE.search(line.text))]
    waiting = [line.number for line, usage in usages if usage >= _FULL_PERCENT and _queue(line.text) > 0]
    if len(waiting) >= _LEAST_FULL and 2 * len(waiting) >= len(usages):
        found.setdefault("kv-cache-full", waiting[0])
    brim = next((index for index, (_, usage) in enumerate(usages) if usage >= _BRIM_PERCENT), len(usages))
    stuck = [
        line for line, usage in usages[brim:] if usage < 1 and _RUNS_NONE.search(line.text) and _queue(line.text) > 0
    ]
    if len(stuck) > 1 and stuck[-1] is usages[-1][0]:
        found.setdefault("kv-cache-stuck", usages[brim][0].number)


def _no_tokens(series: Sequence[Line], found: dict[str, int]) -> None:
    """An engine that to the end of the log has requests and neither reads a prompt nor writes a token."""
    rows = [(line, [float(each) for each in _TOKENS.findall(line.text)]) for line in series]
    rows = [(line, rates) for line, rates in rows if rates]
    idle = 0
    for line, rates in reversed(rows):
        if max(rates) > 0 or not (_RUNS_SOME.search(line.text) or _queue(line.text)):
            break
        idle += 1
    if idle >= _LEAST:
        found["engine-without-tokens"] = rows[-idle][0].number


def _queue(text: str) -> int:
    """Requests that wait."""
    return max((int(number) for number in _WAITING.findall(text)), default=0)


def _collapse(rows: Rows, found: dict[str, int]) -> None:
    _language_loss(rows, found)
    _policy(rows, found)
    for name, least in (("loss", 1.0), ("grad_norm", 5.0)):
        values = [(number, abs(row[name])) for number, row in rows if name in row and row[name] == row[name]]
        lowest_after = _running(min, [value for _, value in values])
        for index, before in _medians_before([value for _, value in values]):
            number, value = values[index]
            jumps = 0 < before < value / _JUMP and value > least
            if jumps and index + 1 < len(values) and lowest_after[index + 1] > _STAYS * before:
                found.setdefault("loss-collapsed", number)
    rewards = [(number, row["reward"]) for number, row in rows if "reward" in row and row["reward"] == row["reward"]]
    highest_after = _running(max, [value for _, value in rewards])
    for index, before in _medians_before([value for _, value in rewards]):
        if index + 2 < len(rewards) and before > _GOOD_REWARD and highest_after[index] <= before / 10:
            found.setdefault("loss-collapsed", rewards[index][0])


def _policy(rows: Rows, found: dict[str, int]) -> None:
    """Completions that are all cut, a divergence that explodes, an entropy that collapses."""
    cut = [(number, row["cut"]) for number, row in rows if "cut" in row]
    if len(cut) >= _LEAST and all(share >= 1.0 for _, share in cut):
        found.setdefault("completions-all-cut", cut[0][0])
    for name in ("kl",):
        values = [(number, row[name]) for number, row in rows if name in row and row[name] == row[name]]
        lowest_after = _running(min, [value for _, value in values])
        for index, before in _medians_before([value for _, value in values]):
            if 0 <= before < values[index][1] / _JUMP and lowest_after[index] > _HIGH_KL:
                found.setdefault("kl-explodes", values[index][0])
    for name in ("entropy",):
        values = [(number, row[name]) for number, row in rows if name in row and row[name] == row[name]]
        early = median(value for _, value in values[:_LEAST]) if len(values) > 2 * _LEAST else 0.0
        if early > 0 and all(value < early / _JUMP for _, value in values[-_LEAST:]):
            found.setdefault("entropy-collapsed", values[-_LEAST][0])


def _language_loss(rows: Rows, found: dict[str, int]) -> None:
    """A loss of language modelling that jumps and doesn't come back; a policy's loss around 0 isn't one."""
    for name in (LANGUAGE,):
        values = [(number, row[name]) for number, row in rows if name in row and row[name] == row[name]]
        lowest_after = _running(min, [value for _, value in values])
        for index in range(2, len(values) - 2):
            before = median(value for _, value in values[max(0, index - 25) : index])
            number, value = values[index]
            if before > 0.5 and value > _SPIKE * before and lowest_after[index] > _SPIKE_STAYS * before:
                found.setdefault("loss-collapsed", number)


def _medians_before(values: Sequence[float]) -> Iterator[tuple[int, float]]:
    """(index, median of up to 25 values before it) from the index on that has enough before it."""
    for index in range(_LEAST, len(values)):
        yield index, median(values[max(0, index - 25) : index])


def _running(choose: Callable[[float, float], float], values: Sequence[float]) -> list[float]:
    """The least (or greatest) of each value and all that follow it."""
    return list(accumulate(reversed(values), choose))[::-1]


def _cut_off(scan: Scan, found: dict[str, int]) -> None:
    start = next((line.number for line in scan.lines if _STARTS.search(line.text)), None)
    if start is not None and not any(_lines_that(_READY, scan)):
        found["start-cut-off"] = start


def _lines_that(pattern: re.Pattern[str], scan: Scan) -> Iterator[Line]:
    return (line for line in scan.lines if pattern.search(line.text))
