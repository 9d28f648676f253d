"""Score the readers against a folder of field cases: `python benchmarks/field_cases.py FOLDER`.

The folder holds `env-*.txt`, `npusmi-*.txt`, `log-*.txt` and an INDEX.md with one table row a file.
Environments count as
right when verdict and row are, npu-smi tables when every claim of the index that can be read by a program
holds (driver,
number of devices, health, support, load, numbering, failure), logs when the primary cause is of the family
named.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ascent.environment import checks, matrix, reports
from ascent.environment.faults import diagnose_text
from ascent.environment.finding import Finding

Case = tuple[str, list[str], str]
UNHEALTHY = ("Warning", "Alarm", "Critical")


def index(folder: Path) -> dict[str, list[str]]:
    """File name -> the cells of its row in INDEX.md, without the name."""
    rows = {}
    for line in (folder / "INDEX.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if re.fullmatch(r"(env|npusmi|log)-\d+\.txt", cells[0]):
            rows[cells[0]] = cells[1:]
    return rows


def environment_misses(text: str, cells: list[str]) -> Iterator[str]:
    """What differs from the expected verdict, such as `no, nearest row v0.18.0: CANN 8.5.0 != 8.5.1`."""
    expected = cells[1]
    judgement = matrix.judge(reports.parse(text))
    got = judgement.kind
    if expected.startswith("yes"):
        wanted = {"fits"}
    elif expected.startswith("no,"):
        wanted = {"differs"}
    elif "not stated" in expected:
        wanted = {"not stated"}
    else:
        wanted = {"no row", "newer"}
    if got not in wanted:
        yield f"verdict {got}, expected {' or '.join(sorted(wanted))}"
    row = re.search(r"row v([\w.+]+)", expected)
    if row and (judgement.row is None or judgement.row.vllm_ascend != row[1].rstrip(":")):
        yield f"row {judgement.row and judgement.row.vllm_ascend}, expected {row[1]}"
    stated = re.findall(r"([\w-]+) \S+ != (\S+?)(?=;|$)", expected) if expected.startswith("no,") else []
    seen = {(each.component.replace("-", "_"), each.want) for each in judgement.differences}
    for component, want in stated:
        if (component.replace("-", "_"), want) not in seen:
            yield f"difference not found: {component} wants {want}"


def table_misses(text: str, cells: list[str]) -> Iterator[str]:
    """What differs from the claims in the expected reading of an npu-smi output."""
    expected = cells[1]
    environment = reports.parse(text)
    found = checks.run(environment)
    devices = environment.npu.devices
    if (driver := re.search(r"\bdriver (\d[\w.]*)", expected)) and environment.npu.driver != driver[1]:
        yield f"driver {environment.npu.driver!r}, expected {driver[1]}"
    if "no driver version" in expected and environment.npu.driver:
        yield "a driver version, expected none"
    count = re.search(r"= (\d+) NPUs|(\d+)x 9|x(\d+) chips", expected)
    if count and len(devices) != int(next(number for number in count.groups() if number)):
        yield f"{len(devices)} devices, expected {count[0]}"
    for state in UNHEALTHY:
        said = re.search(rf"NPU (\d+) {state}|health {state}", expected)
        if said and not any(each.health == state and said[1] in (None, str(each.npu)) for each in devices):
            yield f"health {state} not seen"
    if ("all OK" in expected or expected == "healthy") and any(each.health != "OK" for each in devices):
        yield "a device that isn't OK"
    yield from _rule(
        found, "A205", "error", "supported" in expected and bool(re.search(r"isn't|unsupported", expected))
    )
    yield from _rule(found, "A205", "error", "not a GRPO target" in expected)
    yield from _rule(found, "A205", "ok", bool(re.search(r"A[23],? supported|is A2", expected)))
    yield from _rule(found, "A204", "warning", bool(re.search(r"in use|used by|dies 6|MB used", expected)))
    yield from _rule(found, "A204", "ok", "idle" in expected)
    yield from _rule(found, "A207", "warning", "non-contiguous" in expected)
    yield from _rule(found, "A202", "error", bool(re.search(r"dcmi|driver libs", expected)))
    if used := re.search(r"(\d+)/(\d+) MB used", expected):
        pairs = {(each.memory_used_mb, each.memory_total_mb) for each in devices}
        if (int(used[1]), int(used[2])) not in pairs:
            yield f"memory {used[0]} not seen"
    if "blank" in expected and not any(process.name == "" for process in environment.npu.processes):
        yield "processes without a name were dropped"


def _rule(found: list[Finding], rule: str, level: str, expected: bool) -> Iterator[str]:
    if expected and not any(each.rule == rule and each.level == level for each in found):
        yield f"no {level} under {rule}"


def log_misses(text: str, cells: list[str]) -> Iterator[str]:
    """The family that was named instead of the expected one, and alarms on healthy logs."""
    family = cells[0]
    reading = diagnose_text(text)
    if family.endswith("healthy") and reading.verdict != "healthy":
        yield f"alarm on a healthy log: {reading.verdict}"
    got = reading.primary.fault if reading.primary else reading.verdict
    if got != family and not (family == "healthy" and reading.verdict == "healthy"):
        yield f"{got}, expected {family}"


KINDS: dict[str, Callable[[str, list[str]], Iterator[str]]] = {
    "env": environment_misses,
    "npusmi": table_misses,
    "log": log_misses,
}


def score(folder: Path) -> dict[str, tuple[int, int, list[str]]]:
    """Kind -> right, all, and a line for each miss."""
    rows = index(folder)
    result = {}
    for kind, misses_of in KINDS.items():
        right, misses = 0, []
        files = sorted(folder.glob(f"{kind}-*.txt"))
        for file in files:
            wrong = list(misses_of(file.read_text("utf-8", errors="replace"), rows[file.name]))
            right += not wrong
            misses += [f"{file.name}: {'; '.join(wrong)}"] if wrong else []
        result[kind] = (right, len(files), misses)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="folder with the cases and INDEX.md")
    folder = parser.parse_args().folder
    if not (folder / "INDEX.md").is_file():
        print(f"error: no INDEX.md in {folder}", file=sys.stderr)
        return 2
    result = score(folder)
    for kind, (right, total, misses) in result.items():
        print(f"{kind:7} {right} of {total} right")
        for miss in misses:
            print(f"        {miss}")
    return 0 if all(right == total for right, total, _ in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
