from __future__ import annotations

import npu_tables
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.environment import checks, npu_smi, reports


def test_a2_table_gives_every_device_with_its_hbm() -> None:
    rows = [(index, "910B3", "OK", 0, None, f"0000:C{index}:00.0", 0, 3400 + index, 65536) for index in range(8)]
    read = npu_smi.parse(npu_tables.hbm_table(rows, version="25.5.1"))
    assert (read.state, read.driver, len(read.devices)) == ("read", "25.5.1", 8)
    assert [device.index for device in read.devices] == list(range(8))
    last = read.devices[7]
    assert (
        last.npu,
        last.name,
        last.health,
        last.memory_used_mb,
        last.memory_total_mb,
        last.memory_kind,
    ) == (
        7,
        "910B3",
        "OK",
        3407,
        65536,
        "HBM",
    )


def test_a3_dies_are_devices_of_their_own() -> None:
    rows = [
        (card, "Ascend910", "OK", die, 2 * card + die, "0000:9D:00.0", 0, 3100, 65536)
        for card in range(2)
        for die in range(2)
    ]
    read = npu_smi.parse(npu_tables.hbm_table(rows, version="24.1.rc3.7", dies=True))
    assert read.driver == "24.1.rc3.7"
    assert [(device.npu, device.chip, device.physical) for device in read.devices] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (1, 1, 3),
    ]
    assert {device.name for device in read.devices} == {"Ascend910"}


def test_ddr_cards_have_ddr_memory() -> None:
    read = npu_smi.parse(
        npu_tables.ddr_table([(5, "310P3", "OK", chip, chip, "0000:01:00.0", 0, 1500, 44280) for chip in (0, 1)])
    )
    assert [(device.npu, device.chip, device.memory_total_mb, device.memory_kind) for device in read.devices] == [
        (5, 0, 44280, "DDR"),
        (5, 1, 44280, "DDR"),
    ]


def test_rows_without_banner_and_header_are_read() -> None:
    whole = npu_tables.hbm_table([(2, "910B4-1", "Warning", 0, None, "0000:81:00.0", 7, 20000, 32768)], version="")
    rows_only = "\n".join(line for line in whole.splitlines() if "910B4" in line or "0000:" in line)
    read = npu_smi.parse("some words\n" + rows_only)
    assert read.driver == ""
    assert [(d.name, d.health, d.aicore_percent, d.memory_used_mb) for d in read.devices] == [
        ("910B4-1", "Warning", 7, 20000)
    ]


def test_processes_keep_rows_whose_name_is_hidden() -> None:
    read = npu_smi.parse(npu_tables.process_table([(0, 0, 812, "VLLMWorker_TP", 9000), (1, 1, 813, "", 44000)]))
    assert [(p.npu, p.chip, p.pid, p.name, p.memory_mb) for p in read.processes] == [
        (0, 0, 812, "VLLMWorker_TP", 9000),
        (1, 1, 813, "", 44000),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "dcmi module initialize failed. ret is -8005",
        "dcmi model initialized failed, because the device is used. ret is -8020",
        "npu-smi: error while loading shared libraries: libdrvdsmi_host.so: cannot open shared object file",
        "bash: npu-smi: command not found",
    ],
)
def test_failures_are_failures(line: str) -> None:
    read = npu_smi.parse(f"DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n{line}\n")
    assert read.state == "failed"
    assert read.error == line


def test_health_query_without_a_table() -> None:
    read = npu_smi.parse("npu-smi info -t health -i 3 -c 0\n\tHealth Status : Alarm\n\tError Code : 80E01801\n")
    assert [(device.npu, device.health) for device in read.devices] == [(3, "Alarm (80E01801)")]


@pytest.mark.parametrize(
    ("visible", "count", "good", "bad"),
    [
        ("0,1,2,3", 8, [0, 1, 2, 3], []),
        ("0-3", 8, [0, 1, 2, 3], []),
        ("0,1,3,4", 4, [0, 1, 3], ["4"]),
        ("", 8, [], []),
        (" 2 , 7 ", 4, [2], ["7"]),
        ("npu0", 4, [], ["npu0"]),
        ("0-999999999999", 4, [], ["0-999999999999"]),
    ],
)
def test_mask(visible: str, count: int, good: list[int], bad: list[str]) -> None:
    assert npu_smi.masked_by(visible, count) == (good, bad)


def test_mapping_lists_devices_without_their_controllers() -> None:
    text = (
        "\tNPU ID   Chip ID   Chip Logic ID   Chip Name\n"
        "\t0        0         0               Ascend 910B3\n\t0        1         -               Mcu\n"
        "\t4        0         1               Ascend 910B3\n"
    )
    read = npu_smi.parse(text)
    assert [(device.index, device.npu, device.name, device.health) for device in read.devices] == [
        (0, 0, "910B3", ""),
        (1, 4, "910B3", ""),
    ]


TABLE = npu_tables.hbm_table(
    [(index, "910B3", "OK", 0, None, "0000:C1:00.0", 3, 3400, 65536) for index in range(3)]
) + npu_tables.process_table([(0, 0, 812, "python", 9000)])


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, len(TABLE) - 1), st.sampled_from(["", "|", "9", "\n", "x", " "])), max_size=30)
)
def test_damaged_table_is_read_as_far_as_it_goes(damage: list[tuple[int, str]]) -> None:
    text = TABLE
    for place, character in damage:
        text = text[:place] + character + text[place + 1 :]
    read = npu_smi.parse(text)
    assert len(read.devices) <= 3 + len(damage)


def test_columns_may_be_squeezed() -> None:
    squeezed = "\n".join(" ".join(line.split()) for line in TABLE.splitlines())
    assert [device.memory_used_mb for device in npu_smi.parse(squeezed).devices] == [3400, 3400, 3400]


def test_table_that_a_narrow_terminal_broke_is_read() -> None:
    whole = npu_tables.hbm_table([(3, "910B3", "Alarm", 0, None, "0000:C1:00.0", 7, 20000, 65536)])
    for width in (80, 90):
        broken = "\n".join(
            piece for line in whole.splitlines() for piece in (line[:width], line[width:]) if piece.strip()
        )
        read = npu_smi.parse(broken)
        assert [(d.npu, d.health, d.memory_used_mb, d.memory_total_mb) for d in read.devices] == [
            (3, "Alarm", 20000, 65536)
        ]


@pytest.mark.parametrize(("stated", "health"), [("0K", "OK"), ("ok", "OK"), ("ALARM", "Alarm"), ("Unknown", "UNKNOWN")])
def test_health_in_any_spelling(stated: str, health: str) -> None:
    table = npu_tables.hbm_table([(0, "910B3", stated, 0, None, "OOOO:C1:OO.0", 0, 3400, 65536)])
    assert [(d.health, d.bus) for d in npu_smi.parse(table).devices] == [(health, "0000:C1:00.0")]


def test_half_a_table_gives_what_it_says() -> None:
    lines = TABLE.splitlines()
    first_rows = "\n".join(line for line in lines if "910B3" in line)
    assert [(d.npu, d.name, d.health, d.memory_total_mb) for d in npu_smi.parse(first_rows).devices] == [
        (0, "910B3", "OK", None),
        (1, "910B3", "OK", None),
        (2, "910B3", "OK", None),
    ]
    second_rows = "\n".join(line for line in lines if "0000:" in line)
    assert [(d.name, d.health, d.memory_used_mb) for d in npu_smi.parse(second_rows).devices] == [("", "", 3400)] * 3


def test_row_that_cannot_be_read_is_told() -> None:
    table = (
        TABLE + "| 7     910B3               | ???           | 95.1        41                0    / 0             |\n"
    )
    read = npu_smi.parse(table)
    assert len(read.devices) == 3
    assert [row.split()[1] for row in read.unread] == ["7"]
    found = checks.run(reports.parse(table))
    assert [each.level for each in found if each.rule == "A605"] == ["warning"]


def test_table_of_which_nothing_is_read_is_no_all_clear() -> None:
    banner = npu_tables.banner("25.5.1") + "| NPU   Name                | Health        | Power(W)    Temp(C)  |\n"
    found = checks.run(reports.parse(banner))
    assert [(each.rule, each.level) for each in found] == [("A603", "warning")]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2), (0, 2, 1)], ids=["as printed", "bus column lost", "moved"])
def test_second_row_is_read_by_form_whatever_columns_were_lost_or_moved(order: tuple[int, ...]) -> None:
    table = npu_tables.ddr_table([(4, "310P3", "Warning", 0, 1, "0000:82:00.0", 11, 1500, 21000)])
    row = next(line for line in table.splitlines() if "0000:82" in line)
    moved = "|".join(row.strip("|").split("|")[index] for index in order)
    (device,) = npu_smi.parse(table.replace(row, f"|{moved}|")).devices
    assert (device.npu, device.health, device.memory_used_mb, device.memory_total_mb) == (4, "Warning", 1500, 21000)
    assert device.aicore_percent == 11


def test_range_of_load_gives_its_upper_end() -> None:
    table = npu_tables.ddr_table([(0, "310B1", "OK", 0, 0, "0000:01:00.0", 0, 700, 7000)])
    (device,) = npu_smi.parse(table.replace("| 0            700", "| 0-63         700")).devices
    assert device.aicore_percent == 63


@pytest.mark.parametrize("name", ["xxx", "***", "NPU-A"])
def test_masked_name_is_a_device_below_a_head_only(name: str) -> None:
    table = npu_tables.hbm_table([(6, name, "OK", 0, None, "0000:41:00.0", 0, 3000, 65536)])
    assert [(each.npu, each.health) for each in npu_smi.parse(table).devices] == [(6, "OK")]
    assert not npu_smi.parse("| 6     soup | OK | fresh |\n").devices


def test_processes_of_a_query_keep_their_card_and_chip() -> None:
    line = "        Process id:{}      Process name:{}      Process memory(MB):{}\n"
    block = "        NPU ID                         : {}\n"
    text = (
        block.format(3)
        + line.format(70, "python3.11", 900)
        + line.format(71, "", 12)
        + "        Chip ID                        : 1\n"
        + block.format(5)
        + line.format(80, "ray::Actor", 33)
    )
    assert [(each.npu, each.chip, each.pid, each.name, each.memory_mb) for each in npu_smi.parse(text).processes] == [
        (3, 1, 70, "python3.11", 900),
        (3, 1, 71, "", 12),
        (5, 0, 80, "ray::Actor", 33),
    ]


def test_queries_name_their_devices() -> None:
    block = "\nNPU ID : {}\nProduct Name : X\nSerial Number : 1\nChip Count : 1\n"
    listed = "Total Count : 2\n" + block.format(0) + block.format(4)
    assert [device.npu for device in npu_smi.parse(listed).devices] == [0, 4]
    usages = (
        "        NPU ID                         : 2\n        Chip Count                     : 1\n\n"
        "        HBM Capacity(MB)               : 65536\n        HBM Usage Rate(%)              : 50\n"
        "        Aicore Usage Rate(%)           : 30\n        Chip ID                        : 0\n"
    )
    (device,) = npu_smi.parse(usages).devices
    assert (device.npu, device.chip, device.memory_total_mb, device.memory_used_mb, device.aicore_percent) == (
        2,
        0,
        65536,
        32768,
        30,
    )


def test_910b_in_a_sentence_is_the_family_and_a_guess() -> None:
    found = checks.run(reports.parse("Hardware: 8 x Ascend 910B, CANN 8.5.1, vllm-ascend 0.18.0"))
    assert not any(each.rule == "A205" and each.level == "error" for each in found)
    assert any("guess" in each.what for each in found)
