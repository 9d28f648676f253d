"""Logs -> faults: the primary cause first, nothing on healthy logs, unknown where it is."""

# ruff: noqa: E501

from __future__ import annotations

import gzip
import io
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from known_logs import FAULTY, HEALTHY, NOTHING_DONE

from ascent.environment import explain_failure, faults, known_faults, log_scan, reports


@pytest.mark.parametrize("name", FAULTY)
def test_fault_is_named_first(name: str) -> None:
    expected, log = FAULTY[name]
    reading = faults.diagnose_text(log)
    assert reading.primary is not None, reading
    assert reading.primary.fault == expected
    assert reading.primary.evidence
    assert reading.primary.mend


@pytest.mark.parametrize("name", FAULTY)
def test_fault_is_found_among_the_noise_of_a_long_log(name: str) -> None:
    expected, log = FAULTY[name]
    noise = "".join(
        f"INFO 11-29 10:{i % 60:02d}:00 [loggers.py:257] Engine 000: Running: {i % 9} reqs\n" for i in range(500)
    )
    reading = faults.diagnose_text(
        noise + "".join(f"(Worker pid={i}) {line}\n" for i, line in enumerate(log.splitlines())) + noise
    )
    assert reading.primary is not None
    assert reading.primary.fault == expected


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_log_gives_no_alarm(name: str) -> None:
    reading = faults.diagnose_text(HEALTHY[name])
    assert reading.verdict == ("unjudged" if name in NOTHING_DONE else "healthy"), [
        (each.fault, each.evidence) for each in reading.diagnoses
    ] or reading.unexplained


def test_all_healthy_logs_together_give_no_alarm() -> None:
    reading = faults.diagnose_text("\n".join(HEALTHY.values()))
    assert reading.verdict == "healthy", [
        (each.fault, each.evidence) for each in reading.diagnoses
    ] or reading.unexplained
    assert reading.shown_by is not None


@pytest.mark.parametrize(
    "log",
    ["", "\n\n", "\x00\x01\x02\x03" * 500, "INFO 11-29 10:00:00 [api_server.py:1] vLLM API server version 0.23.0\n"],
)
def test_log_that_shows_no_work_is_no_all_clear(log: str) -> None:
    reading = faults.diagnose_text(log)
    assert reading.verdict == "unjudged"
    assert reading.shown_by is None


def test_error_that_no_entry_knows_is_shown() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1\n{}: no frobs left\n'
    unknown = faults.diagnose_text(log.format("FrobnicationError"))
    assert unknown.verdict == "unknown"
    assert unknown.primary is None
    told = faults.diagnose_text(log.format("mylib.FrobnicationError"))
    assert told.primary is not None
    assert told.primary.confidence < 0.4
    assert "mylib" in told.primary.mend[0]
    for reading in (unknown, told):
        assert any("no frobs left" in each.text for each in reading.unexplained)


def test_consequences_name_their_cause() -> None:
    log = "ValueError: Free memory on device (1/60 GiB) on startup is less than desired\nRuntimeError: Engine core initialization failed.\n"
    reading = faults.diagnose_text(log)
    roles = {each.fault: (each.role, each.follows_from) for each in reading.diagnoses}
    assert roles == {
        "oom-free-memory-on-startup": ("primary", ""),
        "engine-start-failed": ("consequence", "oom-free-memory-on-startup"),
    }


def test_codes_differ_though_their_lines_are_alike() -> None:
    lines = [
        f"RuntimeError: NPU function error: Sync(stream), error code is {code}" for code in (561103, 507035, 107027)
    ]
    found = {each.fault for each in faults.diagnose_text("\n".join(lines)).diagnoses}
    assert {"aclnn-561103", "aicore-exception-generic", "launch-blocking-with-graph"} <= found


def test_number_that_isnt_a_code_is_none() -> None:
    reading = faults.diagnose_text("'num_tokens': 507035.0, step 507011 of 507014, port 507033\n")
    assert (reading.verdict, reading.diagnoses) == ("unjudged", ())


def test_line_numbers_point_into_the_file() -> None:
    log = "a\n" * 41 + "ImportError: libatb.so: cannot open shared object file\n"
    primary = faults.diagnose_text(log).primary
    assert primary is not None
    assert primary.evidence[0].line == 42


def test_run_directory_and_gzip_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(HEALTHY["vllm start"])
    (tmp_path / "deep").mkdir()
    with gzip.open(tmp_path / "deep" / "rank1.log.gz", "wt") as stream:
        stream.write(FAULTY["two jobs"][1])
    (tmp_path / "weights.bin").write_bytes(b"libatb.so: cannot open shared object file")
    readings = faults.diagnose_path(tmp_path)
    assert [(path.name, reading.verdict) for path, reading in readings] == [
        ("rank1.log.gz", "fault"),
        ("rank0.log", "healthy"),
    ]


def test_folder_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no log files"):
        faults.diagnose_path(tmp_path)


def test_stream_without_seek_is_read() -> None:
    assert faults.diagnose_stream(io.BytesIO(FAULTY["disk"][1].encode())).primary is not None


def test_utf16_and_carriage_returns_are_read() -> None:
    text = FAULTY["libatb at import"][1]
    assert faults.diagnose_stream(io.BytesIO(text.encode("utf-16"))).primary is not None
    bar = "".join(f"\rloading {i}%" for i in range(100)) + "\r" + text
    primary = faults.diagnose_text(bar).primary
    assert primary is not None
    assert primary.fault == "nnal-not-installed-or-sourced"


def test_run_explains_its_own_failure() -> None:
    said = explain_failure(FAULTY["two jobs"][1])
    assert said.startswith("error    hccl-port-bound")
    assert "HCCL_IF_BASE_PORT" in said
    assert max(map(len, said.splitlines())) <= 100
    assert explain_failure("ValueError: nobody knows") == ""
    assert explain_failure(HEALTHY["zero loss"]) == ""


# ---- the data ------------------------------------------------------------------------------------------------------
def test_entries_are_whole() -> None:
    known = known_faults.load()
    ids = [fault.id for fault in known]
    assert len(set(ids)) == len(ids)
    for fault in known:
        assert fault.cause
        assert fault.mend
        assert fault.source
        assert 0 < fault.confidence <= 1
        assert fault.level in ("note", "warning", "error")
        assert set(fault.hides) <= set(ids)
        for hidden in fault.hides:
            assert next(each.rank for each in known if each.id == hidden) < fault.rank, (fault.id, hidden)


def test_measures_that_entries_ask_for_exist() -> None:
    source = "".join(
        (Path(faults.__file__).parent / name).read_text() for name in ("measures.py", "trends.py", "drifts.py")
    )
    for fault in known_faults.load():
        for pattern in [*(each for every in fault.when for each in every), *fault.unless]:
            for name in pattern.measures:
                assert f'"{name}"' in source, pattern.text


def test_place_of_an_entry_changes_no_reading() -> None:
    logs = [log for _, log in FAULTY.values()]
    whole = "".join(f"RuntimeError: {log}\n" for log in logs)
    one_line = " ".join(" ".join(logs).split())
    backwards = known_faults.load()[::-1]
    for text in (*logs, whole, one_line, *(f"{one} {other}" for one, other in zip(logs, logs[5:], strict=False))):
        assert faults.diagnose_text(text) == faults.diagnose_scan(log_scan.scan_text(text), backwards)


# ---- nothing makes it fail -------------------------------------------------------------------------------------------
_PIECES = [
    "error code is 507035",
    "EI0006",
    "out of memory. Tried to allocate 1.00 GiB (NPU 0; ",
    "nan",
    "'grad_norm': ",
    "{",
    "}",
    "\n",
    "\r",
    "!" * 30,
    "temperature=0.6",
    "ASCEND_RT_VISIBLE_DEVICES=",
    "0-5,",
    "torch==2.",
    "inf",
    "1e999",
    "\\n",
    "IS ratio: [",
    "]",
    "\x00",
    "é",
]


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "(",
        "a.",
        "1.",
        "ERROR ",
        "x" * 50,
        "CANN ",
        "torch ",
        "vllm-",
        " ",
        "free memory on device ",
        "error code ",
    ],
)
def test_long_lines_take_no_long_time(piece: str) -> None:
    text = (piece * 20_000)[:20_000] + "ValueError: end\n"
    begun = time.process_time()
    faults.diagnose_text(text * 20)
    reports.parse(text * 20)
    assert time.process_time() - begun < 2


@settings(max_examples=150)
@given(st.binary(max_size=600))
@example(b"\xff\xfe\x00")
@example(b"{'grad_norm': 1e999, 'loss': -inf}")
@example(b"\n" * 100)
def test_no_bytes_make_it_fail(log: bytes) -> None:
    faults.diagnose_stream(io.BytesIO(log))


@settings(max_examples=150)
@given(st.lists(st.sampled_from(_PIECES), max_size=40).map("".join))
def test_no_mixture_of_known_pieces_makes_it_fail(log: str) -> None:
    faults.diagnose_text(log)
