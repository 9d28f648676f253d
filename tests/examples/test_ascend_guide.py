"""The Ascend guide: its commands parse, its versions are the release table's, and its two languages agree."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ascent import cli, config
from ascent.environment import diagnose_text, matrix, rules

REPOSITORY = Path(__file__).parents[2]
ENGLISH, CHINESE = REPOSITORY / "docs" / "ascend.md", REPOSITORY / "docs" / "ascend.zh.md"
PAGES = (ENGLISH, CHINESE, REPOSITORY / "examples" / "ascend" / "README.md", REPOSITORY / "README.md")

_WITH_PARTS = {"cluster", "sandbox", "tasks", "regress"}  # verbs of several words


def read(page: Path) -> str:
    return page.read_text("utf-8")


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", read(page), re.S | re.M)


def inline(page: Path) -> list[str]:
    """Code spans of the text, blocks left out."""
    text = re.sub(r"^```\w*\n.*?^```", "", read(page), flags=re.S | re.M)
    return re.findall(r"`([^`\n]+)`", text)


def commands(page: Path) -> list[str]:
    """Every command line of `ascent` on a page: in blocks, and as a code span with more than a verb's name."""
    lines = [line for block in blocks(page) for line in block.replace("\\\n", " ").splitlines()]
    spans = [span for span in inline(page) if span.startswith("ascent ") and "..." not in span]
    bare = [re.sub(r"^(\S*/)?(?=ascent )", "", re.split(r"  #| > ", line)[0].strip()) for line in [*lines, *spans]]
    return [line for line in bare if line.startswith("ascent ") and "RUN" not in line]


def all_commands() -> list[tuple[str, str]]:
    return sorted({(page.name, line) for page in PAGES for line in commands(page)})


def _verb(line: str) -> str:
    return line.split()[1]


@pytest.mark.parametrize(("page", "line"), all_commands())
def test_command_is_accepted(page: str, line: str) -> None:
    words = shlex.split(line)[1:]
    if len(words) == 1 or (len(words) == 2 and words[0] in _WITH_PARTS):  # a verb's name in a sentence
        words.append("--help")
    assert _exit_code(words) == 0, f"{page}: {line}"


def _exit_code(words: list[str]) -> object:
    try:
        cli.parsed(words)
    except SystemExit as stop:
        return stop.code
    return 0


def test_commands_were_found() -> None:
    found = all_commands()
    assert {page for page, _ in found} == {page.name for page in PAGES}
    assert {"train", "doctor", "check-model", "generate", "selftest", "diagnose", "sandbox"} <= {
        _verb(c) for _, c in found
    }


def test_files_that_commands_name_exist() -> None:
    for page in PAGES:
        text = read(page)
        named = set(re.findall(r"\b(?:examples|requirements)/[\w./+-]+\.(?:yaml|sh|txt)\b", text))
        missing = [name for name in named if not (REPOSITORY / name).is_file()]
        assert not missing, f"{page.name} names {missing}"


def test_links_lead_somewhere() -> None:
    for page in (ENGLISH, CHINESE, REPOSITORY / "examples" / "ascend" / "README.md", REPOSITORY / "docs" / "README.md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", read(page)):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda page: page.name)
def test_versions_are_those_of_the_current_row(page: Path) -> None:
    row = matrix.load().row(matrix.load().current)
    assert row is not None
    table = [line for line in read(page).splitlines() if line.startswith("|")]
    cells = {line.split("|")[1].strip(): line.split("|")[4].strip() for line in table if line.count("|") == 5}
    assert re.findall(r"[\d.]+\d", cells["CANN"]) == [row.cann]
    assert re.findall(r"[\d.]+\d(?:\.post\d+)?", cells["PyTorch"]) == [row.torch, row.torch_npu]
    assert re.findall(r"[\d.]+\d(?:\.post\d+)?", cells["vLLM"]) == [row.vllm[0], row.vllm_ascend, row.triton_ascend]


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda page: page.name)
def test_no_other_vllm_ascend_is_named(page: Path) -> None:
    row = matrix.load().row(matrix.load().current)
    assert row is not None
    assert set(re.findall(r"0\.\d{2}\.\d+(?:rc\d+|\.post\d+)?", read(page))) == {row.vllm_ascend, row.vllm[0]}


def test_trl_and_transformers_are_the_pinned_ones() -> None:
    pins = {name.partition("==")[0]: name.strip().partition("==")[2] for name in _requirements()}
    for page in (ENGLISH, CHINESE):
        assert f"TRL {pins['trl']} |" in read(page)
    project = (REPOSITORY / "pyproject.toml").read_text("utf-8")
    (transformers,) = re.findall(r"npu = \[.*transformers==([\d.]+)", project)
    assert f"| {transformers}; TRL" in read(ENGLISH)
    assert f"| {transformers}；TRL" in read(CHINESE)


def _requirements() -> list[str]:
    lines = (REPOSITORY / "requirements" / "npu.txt").read_text("utf-8").splitlines()
    return [str(Requirement(line)) for line in lines if line and not line.startswith("#")]


def test_languages_show_the_same_commands() -> None:
    def bare(page: Path) -> list[list[str]]:
        return [[line.split("  #")[0].rstrip() for line in block.splitlines()] for block in blocks(page)]

    assert bare(ENGLISH) == bare(CHINESE)


def test_languages_name_the_same_settings_files_and_messages() -> None:
    assert sorted(set(inline(ENGLISH))) == sorted(set(inline(CHINESE)))


def test_languages_have_the_same_sections_and_tables() -> None:
    def shape(page: Path) -> list[tuple[str, int]]:
        lines = re.sub(r"^```\w*\n.*?^```", "", read(page), flags=re.S | re.M).splitlines()
        return [(line.split(" ")[0], line.count("|")) for line in lines if line.startswith(("#", "|"))]

    assert shape(ENGLISH) == shape(CHINESE)
    rules_named = [set(re.findall(r"\bA\d{3}\b", read(page))) for page in (ENGLISH, CHINESE)]
    assert rules_named[0] == rules_named[1]
    assert rules_named[0] <= set(rules.load())


def test_settings_of_a_run_exist() -> None:
    """Every dotted key in the guide is a key of the configuration, or of TRL's arguments under `trainer`."""
    for page in (ENGLISH, CHINESE):
        for span in inline(page):
            match = re.match(r"(model|tasks|sandbox|rollout|memory|tracking)\.(\w+)", span)
            if match:
                section = config.RunConfig.model_fields[match[1]].annotation
                assert match[2] in section.model_fields, span  # type: ignore[union-attr]


# Symptom as the guide quotes it -> a line of such a log, and the fault that `ascent diagnose` must see in it.
SYMPTOMS = {
    "`libascend_hal.so: cannot open shared object file`": (
        "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory",
        "driver-not-mounted",
    ),
    "`libatb.so`": ("OSError: libatb.so: cannot open shared object file", "nnal-not-installed-or-sourced"),
    "`Torch not compiled with CUDA enabled`": (
        "AssertionError: Torch not compiled with CUDA enabled",
        "torch-not-compiled-with-cuda",
    ),
    "`Free memory on device ... is less than desired GPU memory utilization`": (
        "ValueError: Free memory on device (10.2/60.96 GiB) on startup is less than desired GPU memory utilization "
        "(0.45, 27.4 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        "oom-free-memory-on-startup",
    ),
    "`NPU out of memory`": (
        "RuntimeError: NPU out of memory. Tried to allocate 3.47 GiB (NPU 0; 60.97 GiB total capacity; 58.92 GiB "
        "already allocated; 58.92 GiB current active; 1.66 GiB free; 58.95 GiB reserved in total by PyTorch)",
        "oom-own-process",
    ),
    "`EI0006`": (
        "EI0006: [PID: 4242] Getting socket times out. Reason: Remote Rank did not send the data in time.",
        "hccl-connect-timeout",
    ),
    "`EI0002`": (
        "EI0002: The wait execution of the Notify register times out. Reason: The Notify register has not received "
        "the Notify record from remote rank [1].",
        "hccl-exec-timeout",
    ),
    "`EJ0003`": (
        "EJ0003: [PID: 159] Failed to bind the IP port. Reason: The IP address and port have been bound already.",
        "hccl-port-bound",
    ),
    "`Bus error`": ("Bus error (core dumped) /dev/shm", "shared-memory-full"),
}


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_symptom_of_the_guide_is_known_to_diagnose(symptom: str) -> None:
    line, fault = SYMPTOMS[symptom]
    assert symptom in read(ENGLISH)
    assert symptom in read(CHINESE)
    reading = diagnose_text(line + "\n")
    assert reading.primary is not None
    assert reading.primary.fault == fault


def test_index_names_every_page() -> None:
    index = read(REPOSITORY / "docs" / "README.md")
    pages = {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page})" not in index} == set()
