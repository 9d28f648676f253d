"""The field cases, where their folder lies beside the repository: scored, with the misses that are known and why."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT.parent / "shared" / "facts" / "field-cases"
# env-017: the text doesn't state vllm-ascend; the row that its author was about to install can't be read from it.
# log-112: the folder names the family of a warning that, by its own words, isn't the cause of the failure.
WRONG = {"env-017.txt", "log-112.txt"}


def _scorer() -> ModuleType:
    name = "field_cases"
    if name in sys.modules:
        return sys.modules[name]
    sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks/field_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _case(text: str, **fields: object) -> object:
    return _scorer().Case("log-1.txt", "log", text, **fields)


DISK = "OSError: [Errno 28] No space left on device: '/data/checkpoint'\n"


def test_cause_fix_and_nothing_else_is_right() -> None:
    score = _scorer().score_log(_case(DISK, causes=("disk-full",), fixes=("df -h",)))
    assert (score.grade, score.rank, score.fix, score.false_findings) == ("right", 1, True, ())


def test_cause_without_its_fix_is_right_in_part() -> None:
    score = _scorer().score_log(_case(DISK, causes=("disk-full",), fixes=("buy a bigger house",)))
    assert (score.grade, score.rank, score.fix) == ("partly", 1, False)


def test_second_finding_takes_the_point() -> None:
    two = (
        DISK + "tokenizers>=0.22,<=0.23 is required for a normal functioning of this module, but found tokenizers==1.\n"
    )
    scorer = _scorer()
    one = scorer.score_log(_case(two, causes=("disk-full",), fixes=("df",)))
    assert one.grade != "right"
    assert "tokenizers-range" in " ".join(one.misses)
    both = scorer.score_log(_case(two, causes=("disk-full", "tokenizers-range"), fixes=("df",)))
    assert both.false_findings == ()


def test_failure_that_is_called_healthy_is_counted() -> None:
    scorer = _scorer()
    score = scorer.score_log(_case("{'train_runtime': 12.5, 'train_loss': 0.1}\n", causes=("disk-full",)))
    assert (score.grade, score.all_clear) == ("wrong", True)
    assert "false all-clear: 1" in scorer.summary([score])[-1]


def test_alarm_on_a_healthy_log_is_counted() -> None:
    score = _scorer().score_log(_case(DISK, healthy=True))
    assert (score.grade, score.false_alarm) == ("wrong", True)


def test_table_without_devices_is_never_right() -> None:
    scorer = _scorer()
    assert scorer.score_table(scorer.Case("npusmi-1.txt", "npusmi", "+---+\n", claims="310P3")).grade == "wrong"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the folder of field cases isn't here")
def test_score() -> None:
    scores = _scorer().score(FOLDER)
    assert {each.case.kind for each in scores} == {"env", "npusmi", "log"}
    wrong = {each.case.name: each.misses for each in scores if each.grade == "wrong"}
    assert set(wrong) <= WRONG, wrong
    assert not any(each.all_clear or each.false_alarm for each in scores)
