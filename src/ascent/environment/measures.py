"""Readings of numbers in a log that a text pattern can't express: who holds the memory, whether a series jumps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median

from ascent.environment import drifts, metrics, trends
from ascent.environment.log_scan import Line, Scan
from ascent.environment.npu_smi import masked_by

_SIZE = r"(-?[\d.]+) ?([KMGTPE]i?B)"
_OOM_OLD = re.compile(
    rf"out of memory\. Tried to allocate {_SIZE} \((?:NPU|GPU) \d+; {_SIZE} total capacity; "
    rf"{_SIZE} already allocated;"
    rf".*?{_SIZE} free; {_SIZE} reserved in total"
)
_OOM_NEW = re.compile(
    rf"out of memory\. Tried to allocate {_SIZE}\.? .*?total capacity of {_SIZE} of which {_SIZE} is free\.?"
    rf"(?:.*?this process has {_SIZE} memory in use)?.*?memory {_SIZE} is allocated by PyTorch,? "
    rf"and {_SIZE} is reserved by PyTorch but unallocated"
)
_UNIT = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60, "B": 1.0}
_ANY_SIZE = re.compile(
    r"(?:allocate|allocating|allocation of|size|malloc\w*|request\w*|length)\D{0,12}?"
    r"(\d+(?:\.\d+)?) ?([KMGTPE]i?B|[Bb]ytes)"
)
_ABSURD = 2**44
_TEMPERATURE = re.compile(r"(?<![\w.])temperature['\"]?\s*[:=]\s*(\d+(?:\.\d+)?)")
_TOP_P = re.compile(r"(?<!\w)top_p['\"]?\s*[:=]\s*(\d*\.?\d+)")
_TOP_K = re.compile(r"(?<!\w)top_k['\"]?\s*[:=]\s*(-?\d+)")
_MIN_P = re.compile(r"(?<!\w)min_p['\"]?\s*[:=]\s*(\d*\.\d+)")
_RATIO_TENSOR = re.compile(r"IS ratio[^\[\n]*\[([^\]\n]*)\]")
# Token 0 of many vocabularies, as the whole of an output: in quotes or after a colon, or many alone in a line.
_RUN_OF_BANGS = re.compile(r"['\"“>:]\s*!{4,}\s*(?:['\"”<]|\\|\.{3}|$)|^\s*!{12,}\s*(?:\.{3})?$")
_OUTPUT_LINE = re.compile(r"generated|output|completion|response|text|content|answer|assistant", re.IGNORECASE)
_REPEAT = re.compile(r"(?P<unit>[^\s=\-_*#.~|+<>/\\]{1,12}(?: ?[^\s=\-_*#.~|+<>/\\]{1,12})?)(?:[ ,]?(?P=unit)){19,}")
_CONTENT = re.compile(r"\"(?:content|text|generated_text|completion)\"\s*:\s*\"(?P<said>(?:[^\"\\]|\\.){60,4000})")
_SHINGLE, _FEWEST_DISTINCT = 4, 0.5
_MASK = re.compile(r"ASCEND_RT_VISIBLE_DEVICES=['\"]?([\d,\s-]+)")
_COUNT = re.compile(r"device_count\(\)\s*(?:=|:|->)?\s*(\d+)")
_MOUNTED = re.compile(r"--device[= ]/dev/davinci(\d+)")
_LOGP_GAP = ("sampling/sampling_logp_difference/mean", "sampling_logp_difference", "rollout_train_logp_diff")
_RATIO = "sampling/importance_sampling_ratio/mean"


def measure(scan: Scan) -> dict[str, int]:
    """The readings that hold for a log, each with the number of a line that shows it."""
    found: dict[str, int] = {}
    for line in scan.lines:
        for read in _LINE_READERS:
            for name in read(line.text):
                found.setdefault(name, line.number)
    _masks(scan.lines, found)
    rows = metrics.rows(scan)
    _series(rows, found)
    _pauses(scan, found)
    for read_of in (trends.read(scan, rows), drifts.read(rows)):
        found |= {name: line for name, line in read_of.items() if name not in found}
    return found


def _oom(text: str) -> Sequence[str]:
    if "out of memory" not in text:
        return ()
    if match := _OOM_OLD.search(text):
        sizes = [_bytes(*match.groups()[index : index + 2]) for index in range(0, 10, 2)]
        wanted, total, allocated, free, reserved = sizes
    elif match := _OOM_NEW.search(text):
        parts = match.groups()
        wanted, total, free = (_bytes(*parts[index : index + 2]) for index in (0, 2, 4))
        allocated = _bytes(*parts[8:10])
        reserved = allocated + _bytes(*parts[10:12])
    else:
        return ()
    if total <= 0 or wanted > _ABSURD:
        return ()
    elsewhere = total - reserved - free
    if elsewhere > 0.25 * total:
        return ("oom-other-process",)
    if reserved - allocated > max(0.05 * total, 0.5 * wanted):
        return ("oom-fragmented",)
    return ("oom-own-process",)


def _absurd(text: str) -> Sequence[str]:
    """A size that no device has: more than 16 TiB was asked for."""
    lowered = text.lower()
    if "alloc" not in lowered and "size" not in lowered and "memory" not in lowered:
        return ()
    sizes = [float(number) * _UNIT[unit[0].upper()] for number, unit in _ANY_SIZE.findall(text)]
    return ("oom-absurd-size",) if any(size > _ABSURD for size in sizes) else ()


def _bytes(number: str, unit: str) -> float:
    try:
        return float(number) * _UNIT[unit[0]]
    except ValueError:
        return 0.0


def _sampling(text: str) -> Sequence[str]:
    found = []
    temperature, top_p, top_k, min_p = (pattern.search(text) for pattern in (_TEMPERATURE, _TOP_P, _TOP_K, _MIN_P))
    if temperature and float(temperature[1]) not in (0.0, 1.0):
        found.append("temperature-not-one")
    truncated = (top_p and 0 < float(top_p[1]) < 1) or (top_k and int(top_k[1]) > 0) or (min_p and float(min_p[1]) > 0)
    if truncated:
        found.append("sampling-truncated")
    return found


def _ratio_off(text: str) -> Sequence[str]:
    match = _RATIO_TENSOR.search(text)
    values = [float(value) for value in re.findall(r"\d+\.?\d*", match[1])] if match else []
    return ("is-ratio-off",) if values and abs(median(values) - 1) > 0.3 else ()


def _output(text: str) -> Sequence[str]:
    if _RUN_OF_BANGS.search(text):
        return ("output-token0",)
    content = _CONTENT.search(text)
    if content and _degenerate(content["said"]):
        return ("output-repeats",)
    repeat = _REPEAT.search(text[:4000]) if _OUTPUT_LINE.search(text[:200]) else None
    if repeat and any(letter.isalpha() for letter in repeat["unit"]):
        return ("output-repeats",)
    return ()


def _degenerate(said: str) -> bool:
    """Whether a text says the same few characters over and over."""
    pieces = [said[start : start + _SHINGLE] for start in range(len(said) - _SHINGLE)]
    return len(set(pieces)) < _FEWEST_DISTINCT * len(pieces) and len(set(said)) < 0.25 * len(said)


_LINE_READERS: tuple[Callable[[str], Sequence[str]], ...] = (_oom, _absurd, _sampling, _ratio_off, _output)


def _masks(lines: Sequence[Line], found: dict[str, int]) -> None:
    """A visible-devices list against the number of devices that the log states, or that the container was given."""
    mask = next(((line, match[1]) for line in lines if (match := _MASK.search(line.text))), None)
    if mask is None:
        return
    line, visible = mask
    text = [each.text for each in lines if "device" in each.text]
    counts = [int(match[1]) for each in text if (match := _COUNT.search(each))]
    listed = len(masked_by(visible, 1 << 20)[0])
    if any(count < listed for count in counts):
        found["mask-beyond-count"] = line.number
    mounted = {number for each in text for number in _MOUNTED.findall(each)}
    if mounted and masked_by(visible, len(mounted))[1]:
        found["mask-beyond-container"] = line.number


def _series(rows: Sequence[tuple[int, dict[str, float]]], found: dict[str, int]) -> None:
    for name in _LOGP_GAP:
        _gap([(number, row[name]) for number, row in rows if name in row], found)
    ratios = [(number, row[_RATIO], row.get(_LOGP_GAP[0])) for number, row in rows if _RATIO in row]
    for number, ratio, gap in ratios:
        if gap is not None and gap < 0.05 and not 0.8 < ratio < 2:
            found.setdefault("is-ratio-sequence", number)
        if ratio < 0.85:
            found.setdefault("is-ratio-low", number)
        if abs(ratio - 1) > 0.3:
            found.setdefault("is-ratio-off", number)
    _losses(rows, found)


def _gap(values: Sequence[tuple[int, float]], found: dict[str, int]) -> None:
    """A gap between sampler and trainer that is small at first and then many times larger: stale weights."""
    finite = [(number, value) for number, value in values if value == value]
    for index in range(2, len(finite)):
        earlier = median(value for _, value in finite[:index][-20:])
        number, value = finite[index]
        if value > 0.1 and 0 <= earlier < value / 5:
            found.setdefault("logp-difference-jump", number)
            return
    if len(finite) >= 2 and median(value for _, value in finite) > 0.5:
        found.setdefault("logp-difference-high", finite[0][0])


def _losses(rows: Sequence[tuple[int, dict[str, float]]], found: dict[str, int]) -> None:
    logged = [(number, row) for number, row in rows if "grad_norm" in row]
    for number, row in logged:
        gradient, loss = row["grad_norm"], row.get("loss")
        if gradient != gradient and loss == 0:
            found.setdefault("grad-nan-loss-zero", number)
    if not logged or any(row["grad_norm"] != row["grad_norm"] for _, row in logged):
        return
    zero = [(number, row) for number, row in logged if abs(row.get("loss", 1.0)) < 1e-6]
    moving = all(row["grad_norm"] > 0 and row.get("reward_std", 0.0) > 0 for _, row in zero)
    if len(zero) == len(logged) and moving:
        found.setdefault("loss-zero-healthy", zero[0][0])
    stuck = [
        (number, row) for number, row in logged if row.get("reward_std") == 0 or row.get("frac_reward_zero_std") == 1
    ]
    if len(stuck) == len(logged) and all(row["grad_norm"] == 0 for _, row in stuck):
        found.setdefault("reward-std-always-zero", stuck[0][0])


def _pauses(scan: Scan, found: dict[str, int]) -> None:
    pauses = [line.number for line in scan.series if "POST /pause" in line.text and "200" in line.text]
    resumes = [line.number for line in scan.series if "POST /resume" in line.text]
    idle = [line.number for line in scan.lines if "Running: 0 reqs" in line.text]
    if pauses and idle and (not resumes or pauses[-1] > resumes[-1]) and max(idle) > pauses[-1]:
        found["paused-never-resumed"] = pauses[-1]
