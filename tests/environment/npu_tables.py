"""npu-smi tables in the layouts of the tool, built for the tests."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[int, str, str, int, int | None, str, int, int, int]
HEAVY = "+===========================+===============+====================================================+"


def banner(version: str) -> str:
    return f"+{'-' * 96}+\n| npu-smi {version:<24} Version: {version:<55} |\n"


def hbm_table(rows: Sequence[Row], *, version: str = "25.5.1", dies: bool = False) -> str:
    """Cards with HBM (A2), or with two dies a card (``dies``, A3).

    A row: npu, name, health, chip, physical id, bus, AICore %, used MB, total MB.
    """
    lines = [
        banner(version).rstrip("\n") if version else "",
        f"+{'-' * 27}+{'-' * 15}+{'-' * 52}+",
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        f"| Chip  {'Phy-ID' if dies else '      '}              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        HEAVY,
    ]
    for npu, name, health, chip, physical, bus, load, used, total in rows:
        second = f"{chip:<6}{physical if physical is not None else '':<20}"
        lines.append(f"| {npu:<6}{name:<20}| {health:<14}| 95.1        41                0    / 0             |")
        lines.append(f"| {second}| {bus:<14}| {load:<12}0    / 0          {used:<5}/ {total:<13}|")
        lines.append(HEAVY)
    return "\n".join(lines) + "\n"


def ddr_table(rows: Sequence[Row], *, version: str = "25.2.0") -> str:
    """Inference cards: a Device column, DDR memory only."""
    edge = f"+{'=' * 31}+{'=' * 17}+{'=' * 54}+"
    lines = [
        f"| npu-smi {version:<40} Version: {version:<47} |",
        "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |",
        "| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |",
        edge,
    ]
    for npu, name, health, chip, physical, bus, load, used, total in rows:
        lines.append(f"| {npu:<8}{name:<22}| {health:<16}| NA           45                0     / 0             |")
        lines.append(f"| {chip:<8}{physical!s:<22}| {bus:<16}| {load:<13}{used:<5}/ {total:<34}|")
        lines.append(edge)
    return "\n".join(lines) + "\n"


def process_table(rows: Sequence[tuple[int, int, int, str, int]]) -> str:
    """Processes: npu, chip, pid, name (may be empty), MB."""
    lines = [
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        HEAVY,
    ]
    lines += [f"| {npu:<8}{chip:<18}| {pid:<14}| {name:<25}| {mb:<24}|" for npu, chip, pid, name, mb in rows]
    return "\n".join([*lines, HEAVY]) + "\n"
