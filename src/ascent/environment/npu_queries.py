"""Read `npu-smi info -m`, `-l` and `-t TOPIC`: lists and `key : value` blocks instead of the table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ascent.environment.inventory import Device, DeviceProcess

# `-m`: NPU, chip, logical id (Ascend 950: and physical, and slot), name. Controllers have none.
_MAPPING = re.compile(r"^[ \t]*(\d+)\s+(\d+)\s+(\d+)\s+(?:\d+\s+){0,2}(Ascend\s?\S+)\s*$", re.M)
_PAIR = re.compile(r"^[ \t|]*([A-Za-z][\w ()/%.-]{1,40}?)\s*[:：]\s*(\S.*?)?[ \t|]*$")
_QUERY = re.compile(r"npu-smi\s+info\s+-t\s+\w+[^\n]*?-i\s+(\d+)(?:[^\n]*?-c\s+(\d+))?")
# `-t proc-mem`: one line for each process.
_PROCESS = re.compile(r"Process id\s*:\s*(\d+)\s+Process name\s*:[ \t]*(\S*)\s+Process memory\(MB\)\s*:\s*(\d+)", re.I)
_PLACE = re.compile(r"^[ \t|]*(NPU|Chip) ID\s*:\s*(\d+)", re.I)
_TELLS = ("health", "capacity", "usage rate", "chip name", "chip type", "error code", "product name", "serial number")
_SUMMARY = "total count"


def devices(text: str) -> list[Device]:
    """The devices that lists and queries name, with what they say of each; health empty where they don't say it."""
    mapped = [
        Device(int(logical), int(npu), int(chip), plain_name(name), "")
        for npu, chip, logical, name in _MAPPING.findall(text)
    ]
    return mapped or [_device(index, block) for index, block in enumerate(_blocks(text))]


def processes(text: str) -> list[DeviceProcess]:
    """The processes that `-t proc-mem` lists. It names the card before them and the chip after them."""
    found: list[DeviceProcess] = []
    waiting: list[tuple[int, str, int]] = []
    npu = 0

    def place(chip: int) -> None:
        found.extend(DeviceProcess(npu, chip, pid, name, used) for pid, name, used in waiting)
        waiting.clear()

    for line in text.splitlines():
        if match := _PROCESS.search(line[:300]):
            waiting.append((int(match[1]), match[2], int(match[3])))
        elif match := _PLACE.match(line):
            place(int(match[2]) if match[1].lower() == "chip" else 0)
            npu = int(match[2]) if match[1].lower() == "npu" else npu
    place(0)
    return found


def _pairs(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if len(line) < 200 and (match := _PAIR.match(line)):
            yield " ".join(match[1].lower().split()), (match[2] or "").strip()


def _blocks(text: str) -> Iterator[Mapping[str, str]]:
    """One mapping for each NPU and chip that is told something of."""
    block: dict[str, str] = {}
    asked: tuple[str, str] | None = None
    for line in text.splitlines():
        if query := _QUERY.search(line):
            if _is_device(block):
                yield block
            asked = (query[1], query[2] or "0")
            block = {"npu id": asked[0], "chip id": asked[1]}
            continue
        for key, value in _pairs([line]):
            begins = key == "npu id" or (key in ("chip id", "health", "health status") and key in block)
            if begins and key in block and _is_device(block):
                yield block
                kept = block.get("npu id", "")
                block = {"npu id": kept} if key != "npu id" and kept and asked is None else {}
            block[key] = value
    if _is_device(block):
        yield block


def _is_device(block: Mapping[str, str]) -> bool:
    return any(any(key.startswith(word) or word in key for word in _TELLS) for key in block)


def _device(index: int, block: Mapping[str, str]) -> Device:
    health = block.get("health status", block.get("health", ""))
    error = block.get("error code", "")
    if health and health.upper() not in ("OK", "0K") and error not in ("", "NA", "0"):
        health = f"{state(health)} ({error})"
    total = _number(block, "hbm capacity") or _number(block, "ddr capacity")
    rate = _number(block, "hbm usage rate", "ddr usage rate")
    return Device(
        index=index,
        npu=_number(block, "npu id") if _number(block, "npu id") is not None else index,  # type: ignore[arg-type]
        chip=_number(block, "chip id") or 0,
        name=plain_name(block.get("chip name", block.get("chip type", ""))),
        health=health if "(" in health else state(health),
        aicore_percent=_number(block, "aicore usage rate"),
        memory_used_mb=total * rate // 100 if total is not None and rate is not None else None,
        memory_total_mb=total,
        memory_kind="" if total is None else "HBM" if _number(block, "hbm capacity") else "DDR",
    )


def _number(block: Mapping[str, str], *keys: str) -> int | None:
    for key in keys:
        for name, value in block.items():
            if name.startswith(key) and (match := re.match(r"\d+", value)):
                return int(match[0])
    return None


HEALTH_STATES = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN", "Offline")


def state(text: str) -> str:
    """A state of health in npu-smi's spelling; a zero that was read for the letter O is mended."""
    mended = text.strip().replace("0K", "OK").replace("0k", "OK")
    return next((each for each in HEALTH_STATES if each.lower() == mended.lower()), mended)


def plain_name(name: str) -> str:
    """A chip's name without the prefix. The dies of an A3 card are called Ascend910 and nothing else."""
    short = re.sub(r"^Ascend\s*", "", name)
    return "Ascend910" if short == "910" and name != short else "" if short in ("NA", "-") else short
