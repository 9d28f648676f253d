"""Each known fault, pasted in every way and among other things: it is still found first, and nothing else is."""

from __future__ import annotations

import random

import pytest
from known_logs import FAULTY, HEALTHY
from surroundings import PASTES, evidence_for, surrounded

from ascent.environment import faults, known_faults, log_scan, signs
from ascent.environment.known_faults import Fault

# Settings hold for the whole log, whatever failed in it. The others are well as a whole only: cut, they show a server
# that never came up, groups without a signal, or an engine that stays paused; and two runs' figures make no series.
NOT_AROUND = {
    "debugging settings",
    "settings printed",
    "some groups without signal",
    "waited for the server",
    "paused and resumed",
    "metrics",
}
WELL = [log for name, log in HEALTHY.items() if name not in NOT_AROUND and log]
NOTES = [evidence_for(fault) or "" for fault in known_faults.load() if fault.level == "note"]
ALARMS = [fault for fault in known_faults.load() if fault.level != "note"]
TIMES = 20


def _samples(fault: Fault) -> list[str]:
    """Logs of this fault: those written for the tests, otherwise what its entry looks for."""
    written = [log for expected, log in FAULTY.values() if expected == fault.id]
    made = evidence_for(fault)
    return written or ([made] if made else [])


def _alone(reading: faults.Reading) -> list[str]:
    return [each.fault for each in reading.diagnoses if each.level != "note" and each.role in ("primary", "also")]


def test_every_entry_is_found_by_its_own_evidence() -> None:
    wrong = {}
    for fault in ALARMS:
        for log in _samples(fault):
            found = _alone(faults.diagnose_text(log))
            if found != [fault.id]:
                wrong[fault.id] = found
    assert not wrong


@pytest.mark.parametrize("paste", PASTES)
def test_paste_changes_no_reading(paste: str) -> None:
    wrong = {}
    offset = list(PASTES).index(paste) % 3
    for name, (expected, log) in list(FAULTY.items())[offset::3]:  # test_all_pastes takes all
        primary = faults.diagnose_text(PASTES[paste](log)).primary
        if primary is None or primary.fault != expected:
            wrong[name] = primary and primary.fault
    assert not wrong


def _wrong_in_surroundings(fault: Fault, times: int) -> list[tuple[list[str], str]]:
    wrong = []
    figures = any(pattern.measures for every in fault.when for pattern in every)
    around = [log for log in WELL if not (figures and "grad_norm" in log)]  # another run's figures contradict it
    if fault.passes:  # it is a note where the work was done after it
        around = [log for log in around if signs.end_of_work(log_scan.scan_text(log), 0) is None]
    for log in _samples(fault):
        for seed in range(times):
            text = surrounded(log, around, NOTES, random.Random(f"{fault.id}/{seed}"))
            found = _alone(faults.diagnose_text(text))
            if found != [fault.id]:
                wrong.append((found, text))
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("paste", PASTES)
def test_all_pastes(paste: str) -> None:
    for expected, log in FAULTY.values():
        primary = faults.diagnose_text(PASTES[paste](log)).primary
        assert primary is not None
        assert primary.fault == expected


@pytest.mark.parametrize("fault", ALARMS[::4], ids=lambda fault: fault.id)
def test_fault_is_found_in_any_surroundings_and_nothing_else(fault: Fault) -> None:
    assert not _wrong_in_surroundings(fault, times=1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ALARMS, ids=lambda fault: fault.id)
def test_fault_is_found_in_twenty_surroundings_and_nothing_else(fault: Fault) -> None:
    assert not _wrong_in_surroundings(fault, times=TIMES)
