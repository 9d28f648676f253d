"""Read what `npu-smi info` prints, in every layout from 23.0 on, whole or as a fragment of a paste."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ascent.environment.inventory import Device, DeviceProcess, NpuSmi

_BANNER = re.compile(r"npu-smi\s+v?(\d[\w.]*)(?:\s+Version:\s*v?(\d[\w.]*))?")
_NAME_CELL = re.compile(r"(\d+)\s+((?:Ascend\s*)?\d{3}\w*(?:[-_]\w+)*|Ascend\w+)")
_CHIP_CELL = re.compile(r"(\d+)(?:\s+(\d+|NA|-))?")
_BUS_CELL = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|NA|-")
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
_AICORE = re.compile(r"\s*(\d+|NA|-)\b")
_PROCESS = re.compile(r"(\d+)\s+(\d+)")
# A failure of npu-smi itself; looked for in lines that name dcmi or npu-smi.
_FAILURE = re.compile(
    r"\bdcmi\b.*\bret(?: is)?\s*:?\s*-\d+|npu-smi:\s*error while loading|npu-smi\b.*(?:command not found|No such file)",
    re.IGNORECASE,
)
_LONGEST_LINE = 2000
_HEALTH_QUERY = re.compile(r"^[ \t]*Health(?: Status)?\s*:\s*(OK|Warning|Alarm|Critical|UNKNOWN)\s*$", re.I | re.M)
_HEALTH_ERROR = re.compile(r"^[ \t]*Error Code\s*:\s*(\S.*?)\s*$", re.I | re.M)
_QUERY_ID = re.compile(r"npu-smi\s+info\s+-t\s+\w+[^\n]*?-i\s+(\d+)(?:[^\n]*?-c\s+(\d+))?")
# `npu-smi info -m`: NPU, chip, logical id (Ascend 950: and physical, and slot), name. Controllers have none.
_MAPPING = re.compile(r"^[ \t]*(\d+)\s+(\d+)\s+(\d+)\s+(?:\d+\s+){0,2}(Ascend\s?\S+)\s*$", re.M)
HEALTH_STATES = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN", "Offline")


def parse(text: str) -> NpuSmi:
    """Devices, processes and driver version from npu-smi's output; `state` says `failed` when it printed an error.

    Never raises: lines that aren't npu-smi's are passed over.
    """
    banner = _BANNER.search(text)
    driver = (banner[2] or banner[1]) if banner else ""
    devices, processes = _tables(text)
    if not devices:
        devices = _mapping(text) or _health_queries(text)
    failure = _failure(text)
    if devices or processes:
        return NpuSmi("read", driver, tuple(devices), tuple(processes))
    if failure:
        return NpuSmi("failed", driver, error=failure)
    return NpuSmi("read" if banner else "not stated", driver)


def _failure(text: str) -> str:
    """The line in which npu-smi says why it fails, empty when there is none."""
    for line in text.splitlines():
        if ("dcmi" in line or "npu-smi" in line) and _FAILURE.search(line[:_LONGEST_LINE]):
            return line.strip()[:300]
    return ""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _tables(text: str) -> tuple[list[Device], list[DeviceProcess]]:
    devices: list[Device] = []
    processes: list[DeviceProcess] = []
    pending: tuple[int, str, str] | None = None
    columns = ""
    for line in text.splitlines():
        if line.count("|") < 3:
            continue
        cells = _cells(line)
        if cells[0].startswith("Chip"):
            columns = " ".join(cells)
        elif len(cells) >= 4 and (process := _process(cells)):
            processes.append(process)
        elif len(cells) == 3:
            head = _NAME_CELL.fullmatch(cells[0])
            if head and any(cells[1].lower() == state.lower() for state in HEALTH_STATES):
                pending = (int(head[1]), head[2], cells[1])
            elif pending and (device := _device(cells, pending, len(devices), columns)):
                devices.append(device)
                pending = None
    return devices, processes


def _device(cells: list[str], head: tuple[int, str, str], index: int, columns: str) -> Device | None:
    chip = _CHIP_CELL.fullmatch(cells[0])
    if chip is None or not (_BUS_CELL.fullmatch(cells[1]) or cells[1] == ""):
        return None
    second = int(chip[2]) if chip[2] and chip[2].isdigit() else None
    usages = [(int(used), int(total)) for used, total in _USAGE.findall(cells[2])]
    # Where HBM stands it is the last pair; a chip without HBM shows its DDR only.
    used, total = usages[-1] if usages else (None, None)
    has_hbm = "HBM" in columns if columns else len(usages) > 1
    if usages and has_hbm and usages[-1][1] == 0:
        used, total, has_hbm = usages[0][0], usages[0][1], False
    load = _AICORE.match(cells[2])
    return Device(
        index=index,
        npu=head[0],
        chip=int(chip[1]),
        name=_plain_name(head[1]),
        health=_health(head[2]),
        physical=second,
        bus=cells[1],
        aicore_percent=int(load[1]) if load and load[1].isdigit() else None,
        memory_used_mb=used,
        memory_total_mb=total,
        memory_kind="" if not usages else "HBM" if has_hbm else "DDR",
    )


def _process(cells: list[str]) -> DeviceProcess | None:
    place = _PROCESS.fullmatch(cells[0])
    if place is None or not cells[1].isdigit() or not cells[3].isdigit():
        return None
    return DeviceProcess(int(place[1]), int(place[2]), int(cells[1]), cells[2], int(cells[3]))


def _mapping(text: str) -> list[Device]:
    """The devices that `npu-smi info -m` lists; it says nothing of their health."""
    rows = _MAPPING.findall(text)
    return [Device(int(logical), int(npu), int(chip), _plain_name(name), "") for npu, chip, logical, name in rows]


def _health_queries(text: str) -> list[Device]:
    """`npu-smi info -t health -i N -c M`: a state without a name."""
    states = list(_HEALTH_QUERY.finditer(text))
    errors = [match[1] for match in _HEALTH_ERROR.finditer(text)]
    asked = list(_QUERY_ID.finditer(text))
    found = []
    for index, state in enumerate(states):
        npu = int(asked[index][1]) if index < len(asked) else index
        health = _health(state[1])
        device = Device(index, npu, 0, "", health)
        if index < len(errors) and errors[index] not in ("NA", "0") and health != "OK":
            device = replace(device, health=f"{health} ({errors[index]})")
        found.append(device)
    return found


def _health(text: str) -> str:
    return next((state for state in HEALTH_STATES if state.lower() == text.lower()), text)


def _plain_name(name: str) -> str:
    short = re.sub(r"^Ascend\s*", "", name)
    # The dies of an A3 card are called "Ascend910" and nothing else: there the prefix is the name.
    return "Ascend910" if short == "910" and name != short else short


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
