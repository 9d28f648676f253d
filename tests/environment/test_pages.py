"""Rules, settings and the pages made from the data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ascent.environment import pages, rules, settings

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL_SETTINGS = (
    "NPU_ARCH",
    "TORCH_CUDA_ARCH_LIST",
    "batch_size_auto_tune",
    "max_seq_len",
    "block_size",
    "cache_block_size",
    "contiguous_buffers",
    "max_workspace_size",
    "apex amp O2",
    "transfer_to_npu(model, ...)",
    "npu_huge_page",
    "max_npu_task",
    "task_sched.conf",
    "vllm_device",
)


@pytest.mark.parametrize("name", pages.PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == pages.PAGES[name](), (
        "run: python -m ascent.environment.pages docs"
    )


def test_pages_are_written(tmp_path: Path) -> None:
    assert pages.main([str(tmp_path)]) == 0
    assert {file.name for file in tmp_path.iterdir()} == set(pages.PAGES)
    assert pages.main([]) == 2


def test_every_rule_number_in_the_code_has_an_entry_and_the_other_way_round() -> None:
    rooms = [ROOT / "src/ascent" / room for room in ("environment", "cluster")]
    code = "".join(file.read_text() for room in rooms for file in room.rglob("*.py"))
    used = set(re.findall(r'"(A\d{3})"', code))
    assert used == set(rules.load())


def test_rules_are_whole() -> None:
    for rule in rules.load().values():
        assert rule.title
        assert rule.why
        assert rule.mend
        assert rule.source
        assert set(rule.levels) <= {"ok", "note", "warning", "error"}


@pytest.mark.parametrize("name", TUTORIAL_SETTINGS)
def test_setting_of_tutorials_has_an_answer(name: str) -> None:
    entry = settings.explain(name)
    assert entry is not None
    assert entry.answer
    assert entry.use_instead


@pytest.mark.parametrize(
    ("spelling", "name"), [("npu-arch", "NPU_ARCH"), ("Block Size in MB", "block_size"), ("apex", "amp_o2")]
)
def test_spellings_lead_to_the_entry(spelling: str, name: str) -> None:
    entry = settings.explain(spelling)
    assert entry is not None
    assert entry.name == name


def test_unknown_setting_gets_the_nearest_names() -> None:
    assert settings.explain("max_seq_lenn") is None
    assert settings.nearest("max_seq_lenn") == ["max_seq_len"]
    assert settings.nearest("zzzz") == []


def test_spellings_are_unique() -> None:
    seen: dict[str, str] = {}
    for entry in settings.load().values():
        for spelling in {re.sub(r"[^a-z0-9]+", "", each.lower()) for each in (entry.name, *entry.aliases)}:
            assert seen.setdefault(spelling, entry.name) == entry.name
