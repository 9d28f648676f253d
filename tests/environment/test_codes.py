"""The vendor's status codes: every published one means something, an unknown one of a known family says what to do."""

from __future__ import annotations

import pytest

from ascent.environment import codes, faults

NAMES = codes.names()


@pytest.mark.parametrize("code", [code for code in NAMES if not code.startswith("W")])
def test_every_published_code_belongs_to_one_family(code: str) -> None:
    families = [family.id for family in codes.load() if family.meaning(code)]
    assert len(families) == 1, families


def test_codes_that_people_meet_say_what_to_do() -> None:
    for family in codes.load():
        assert family.unknown
        for code, meaning in family.codes.items():
            assert meaning.text
            assert code in NAMES or meaning.mend or code in family.inner, code


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("RuntimeError: call failed, error code is 207007", "207007", "events"),
        ("EL0005: [PID: 5] The resources are busy.", "EL0005", "busy"),
        ("[ERROR] RecentErrMsg: Resource_Busy(EL0005): busy", "EL0005", "busy"),
        ("npu-smi: return code -8012", "-8012", "ready"),
        ("hcclCommInitRootInfoConfig(numRanks, &rootInfo), error code is 5", "HCCL 5", "supported"),
        ("ERR00012 PTA permission error", "ERR00012", "permission"),
        ("rtStreamCreate failed, retCode=0x711000e", "0X711000E", "resources"),
        ("返回码为 507047", "507047", "event"),
        ("ErrCode=507047, desc=[event sync timeout]", "507047", "event"),
    ],
)
def test_code_is_read_and_explained(line: str, code: str, word: str) -> None:
    primary = faults.diagnose_text(line + "\n").primary
    assert primary is not None
    assert primary.fault == f"code-{code.lower().replace(' ', '-')}"
    assert code in primary.cause
    assert word in primary.cause
    assert primary.mend


def test_entry_tells_what_its_code_means() -> None:
    primary = faults.diagnose_text("dcmi module initialize failed. ret is -8012\n").primary
    assert primary is not None
    assert primary.fault == "npu-smi-failed"
    assert "the device isn't ready" in primary.context


def test_unknown_member_of_a_known_family_says_what_to_look_at() -> None:
    primary = faults.diagnose_text("EI0777: [PID: 1] something new happened\n").primary
    assert primary is not None
    assert "HCCL" in primary.cause
    assert "EI0777" in primary.cause
    assert any("ranks" in step for step in primary.mend)


def test_inner_error_is_not_the_answer_where_a_code_stands() -> None:
    log = "EZ9999: Inner Error!\n        rtEventCreate failed, error code is 207007\nERR00100 PTA call acl api failed\n"
    primary = faults.diagnose_text(log).primary
    assert primary is not None
    assert primary.fault == "code-207007"


@pytest.mark.parametrize(
    "line", ["INFO 01-01 10:00:00 [x.py:1] error code is 207007", "step 507014 of 600000", "id=EE10024x"]
)
def test_number_that_is_no_code_is_none(line: str) -> None:
    assert not faults.diagnose_text(line + "\n").diagnoses


@pytest.mark.parametrize("code", ["EI0006", "507014", "-8020", "EZ1001"])
def test_code_can_be_looked_up(code: str) -> None:
    found = codes.explain(code)
    assert found is not None
    assert found[1] is not None
    assert codes.explain("nothing") is None
