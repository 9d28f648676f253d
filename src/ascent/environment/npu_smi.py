"""Read what `npu-smi info` prints, in every layout from 23.0 on, whole or as a fragment of a paste."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ascent.environment import npu_queries
from ascent.environment.inventory import Device, DeviceProcess, NpuSmi
from ascent.environment.npu_queries import HEALTH_STATES, plain_name, state

_BANNER = re.compile(r"npu-smi\s+v?(\d[\w.]*)(?:\s+Version:\s*v?(\d[\w.]*))?")
_NAME_CELL = re.compile(r"(\d+)\s+((?:Ascend\s*)?\d{3}\w*(?:[-_]\w+)*|Ascend\w+)")
_ANY_NAME_CELL = re.compile(r"(\d+)\s+([\w*.-]+)")
_CHIP_CELL = re.compile(r"(\d+)(?:\s+(\d+|NA|-))?")
_BUS_CELL = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|NA|-")
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
_AICORE = re.compile(r"\s*(?:\d+-)?(\d+|NA|-)(?=[\s%|]|$)")
_WATTS = re.compile(r"(\d+(?:\.\d+)?)\s+\d+(?:\s|$)")  # before the temperature
_PROCESS = re.compile(r"(\d+)\s+(\d+)")
# A failure of npu-smi itself; looked for in lines that name dcmi or npu-smi.
_FAILURE = re.compile(
    r"\bdcmi\b.*\bret(?: is)?\s*:?\s*-\d+|npu-smi:\s*error while loading|npu-smi\b.*(?:command not found|No such file)",
    re.IGNORECASE,
)
_LONGEST_LINE = 2000
# A row that tells of a device or a process, whole or not: a number first, and cells after it.
_ROW = re.compile(r"\|?\s*\d+\s+[\w.:/-]*\s*\|")
_MISREAD = re.compile(r"(?<=[\d:.])O|O(?=[\d:.O])")
_RULE = re.compile(r"\s*\+[-=+]+\+?\s*$")


def parse(text: str) -> NpuSmi:
    """Devices, processes and driver version from npu-smi's output; `state` says `failed` when it printed an error.

    Rows that tell of a device and can't be read are in `unread`. Never raises: lines that aren't npu-smi's are passed
    over.
    """
    banner = _BANNER.search(text)
    driver = (banner[2] or banner[1]) if banner else ""
    table = _Table()
    for line in _rows(text):
        table.add(line)
    table.finish()
    devices = table.devices or npu_queries.devices(text)
    processes = table.processes or npu_queries.processes(text)
    failure = _failure(text)
    unread = tuple(dict.fromkeys(table.unread))
    if devices or processes:
        return NpuSmi("read", driver, tuple(devices), tuple(processes), unread=unread)
    if failure:
        return NpuSmi("failed", driver, error=failure, unread=unread)
    return NpuSmi("read" if banner else "not stated", driver, unread=unread)


def _failure(text: str) -> str:
    """The line in which npu-smi says why it fails, empty when there is none."""
    for line in text.splitlines():
        if ("dcmi" in line or "npu-smi" in line) and _FAILURE.search(line[:_LONGEST_LINE]):
            return line.strip()[:300]
    return ""


def _rows(text: str) -> Iterator[str]:
    """The lines of tables; one that a narrow terminal broke is put together again."""
    held = ""
    for line in text.splitlines():
        ends = line.rstrip().endswith("|")
        if held and ends and line.count("|") <= 2 and not line.lstrip().startswith("|"):
            exact = held[-1] != " " and line[0] != " "  # broken in the middle of a word
            yield held + ("" if exact else " ") + line
            held = ""
            continue
        if held:
            yield held
        begins = line.lstrip().startswith("|") and not ends and line.count("|") >= 2
        held = line if begins else ""
        if not begins and line.count("|") >= 2:
            yield line
    if held:
        yield held


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


class _Head(NamedTuple):
    """Number, name, health and power of a device, as its first row has them."""

    npu: int
    name: str
    health: str
    watts: float | None


@dataclass
class _Table:
    """The rows of a table as they come: a device is a row with name and health, and one with chip and memory."""

    devices: list[Device] = field(default_factory=list)
    processes: list[DeviceProcess] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    head: _Head | None = None
    columns: str = ""

    def add(self, line: str) -> None:
        cells = _cells(line)
        if cells[0].startswith(("Chip", "NPU", "npu-smi")) or "No running" in line:
            self.columns = " ".join(cells) if cells[0].startswith("Chip") else self.columns
            return
        cells = [_digits(cell) for cell in cells]
        if len(cells) == 4 and not _process(cells):  # number and name apart
            cells = [f"{cells[0]} {cells[1]}".strip(), *cells[2:]]
        if len(cells) >= 4 and (process := _process(cells)):
            self.processes.append(process)
        elif (head := _head(cells, any_name=bool(self.columns))) is not None:
            self._alone()
            self.head = head
        elif len(cells) >= 2 and (device := _device(cells, self.head, len(self.devices), self.columns)):
            self.devices.append(device)
            self.head = None
        elif _ROW.match(line.strip()) and not _RULE.match(line):
            self.unread.append(" ".join(line.split())[:200])

    def finish(self) -> None:
        self._alone()

    def _alone(self) -> None:
        """A device of which the second row is missing: its number, name and health are known."""
        if self.head is not None:
            npu, name, health, watts = self.head
            chip = sum(each.npu == npu for each in self.devices)
            self.devices.append(
                Device(len(self.devices), npu, chip, plain_name(name), state(health), power_watts=watts)
            )
            self.unread.append(f"NPU {npu} {name}: its second row (chip, memory, load) is missing")
            self.head = None


def _digits(cell: str) -> str:
    return cell if cell.upper() == "OK" else _MISREAD.sub("0", cell)


def _head(cells: list[str], *, any_name: bool) -> _Head | None:
    """A device's first row; below a head of the table a name may be masked."""
    if not 2 <= len(cells) <= 4:
        return None
    name = _NAME_CELL.fullmatch(cells[0]) or (_ANY_NAME_CELL.fullmatch(cells[0]) if any_name else None)
    if name is None or not any(state(cells[1]).lower() == each.lower() for each in HEALTH_STATES):
        return None
    watts = _WATTS.match(cells[2]) if len(cells) > 2 else None
    return _Head(int(name[1]), name[2], cells[1], float(watts[1]) if watts else None)


def _device(cells: list[str], head: _Head | None, index: int, columns: str) -> Device | None:
    """A device's second row. Bus and memory are known by their form: a paste may have lost or moved a column."""
    chip = _CHIP_CELL.fullmatch(cells[0] or ("0" if head else ""))
    bus = next((cell for cell in cells[1:] if cell == "" or _BUS_CELL.fullmatch(cell)), None)
    if chip is None or (head is None and bus in (None, "", "NA", "-")):
        return None
    figures = "  ".join(cell for cell in cells[1:] if cell != bus)
    if bus is None and not _USAGE.search(figures):
        return None
    second = int(chip[2]) if chip[2] and chip[2].isdigit() else None
    usages = [(int(used), int(total)) for used, total in _USAGE.findall(figures)]
    # Where HBM stands it is the last pair; a chip without HBM shows its DDR only.
    used, total = usages[-1] if usages else (None, None)
    has_hbm = "HBM" in columns if columns else len(usages) > 1
    if usages and has_hbm and usages[-1][1] == 0:
        used, total, has_hbm = usages[0][0], usages[0][1], False
    load = _AICORE.match(figures)
    npu, name, health, watts = head or _Head(index, "", "", None)
    return Device(
        index=index,
        npu=npu,
        chip=int(chip[1]),
        name=plain_name(name),
        health=state(health),
        physical=second,
        bus=bus or "",
        aicore_percent=int(load[1]) if load and load[1].isdigit() else None,
        memory_used_mb=used,
        memory_total_mb=total,
        memory_kind="" if not usages else "HBM" if has_hbm else "DDR",
        power_watts=watts,
    )


def _process(cells: list[str]) -> DeviceProcess | None:
    place = _PROCESS.fullmatch(cells[0])
    if place is None or not cells[1].isdigit() or not cells[3].isdigit():
        return None
    return DeviceProcess(int(place[1]), int(place[2]), int(cells[1]), cells[2], int(cells[3]))


def masked_by(visible: str, count: int) -> tuple[list[int], list[str]]:
    """Read ASCEND_RT_VISIBLE_DEVICES: the indices that exist among ``count`` devices, and the entries that don't."""
    good: list[int] = []
    bad: list[str] = []
    for entry in _entries(visible):
        if entry.isdigit() and int(entry) < count:
            good.append(int(entry))
        else:
            bad.append(entry)
    return good, bad


def _entries(visible: str) -> Iterator[str]:
    for entry in visible.replace(" ", "").strip("\"'").split(","):
        span = re.fullmatch(r"(\d{1,4})-(\d{1,4})", entry)
        if span and int(span[1]) <= int(span[2]) < int(span[1]) + 1024:
            yield from map(str, range(int(span[1]), int(span[2]) + 1))
        elif entry:
            yield entry
