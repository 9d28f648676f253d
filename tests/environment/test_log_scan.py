# ruff: noqa: E501

from __future__ import annotations

import io
import itertools
import random
import resource
import time
from pathlib import Path

import pytest

from ascent.environment import faults, known_faults, log_scan
from ascent.environment.faults import Reading


def typical_lines(rng: random.Random, count: int) -> list[str]:
    """Lines of a training run with a server: engine statistics, requests, metrics."""
    lines = []
    for index in range(count):
        kind = index % 10
        if kind == 0:
            lines.append(
                f"{{'loss': {rng.random():.4f}, 'grad_norm': {rng.random():.5f}, 'reward': {rng.random():.4f}, 'reward_std': 0.3, "
                f"'sampling/sampling_logp_difference/mean': 0.01{rng.randrange(10)}}}\n"
            )
        elif kind % 3 == 0:
            lines.append(
                f'INFO: 10.0.0.1:{rng.randrange(65536)} - "POST /v1/completions HTTP/1.1" 200 OK cmpl-{rng.getrandbits(128):032x}\n'
            )
        else:
            lines.append(
                f"(EngineCore_DP0 pid={rng.randrange(9)}) INFO 11-29 10:{index % 60:02d}:00 [loggers.py:257] Engine 000: "
                f"{rng.random() * 9999:.1f} tokens/s, Running: {rng.randrange(64)} reqs, KV cache usage: {rng.random() * 100:.1f}%\n"
            )
    return lines


def test_alike_lines_are_kept_once_and_series_whole() -> None:
    scanned = log_scan.scan_text("".join(typical_lines(random.Random(0), 3000)))
    assert scanned.line_count == 3000
    assert len(scanned.lines) < 50
    assert len(scanned.series) == 300


def test_pieces_dont_change_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    log = (
        "".join(typical_lines(random.Random(1), 2000)) + "RuntimeError: error code is 507014\nlast line without an end"
    )
    whole = log_scan.scan_text(log)
    monkeypatch.setattr(log_scan, "CHUNK", 700)
    pieces = log_scan.scan(io.BytesIO(log.encode()))
    assert (pieces.lines, pieces.series, pieces.line_count) == (whole.lines, whole.series, whole.line_count)


def test_error_behind_much_distinct_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scan, "DISTINCT_BYTES", 50_000)
    monkeypatch.setattr(log_scan, "CHUNK", 20_000)
    rng = random.Random(2)
    words = [
        "solve",
        "return",
        "value",
        "list",
        "sort",
        "graph",
        "tree",
        "queue",
        "stack",
        "hash",
        "index",
        "merge",
    ]
    prose = "".join(" ".join(rng.choices(words, k=12)) + "\n" for _ in range(20_000))
    scanned = log_scan.scan(io.BytesIO((prose + "RuntimeError: Sync, error code is 507014\n").encode()))
    assert scanned.thinned
    primary = faults.diagnose_scan(scanned).primary
    assert primary is not None
    assert primary.fault == "aicore-timeout"


def quickest_of_three(log: Path) -> tuple[float, Reading]:
    """CPU seconds of diagnosing a log, least disturbed by neighbours, and what it says."""
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        ((_, reading),) = faults.diagnose_path(log)
        seconds.append(time.process_time() - begun)
    return min(seconds), reading


def test_time_and_memory_of_a_large_log(tmp_path: Path) -> None:
    """A tenth of the promised 200 MB in a fifth of the promised time, with room for a loaded machine."""
    log = tmp_path / "run.log"
    block = "".join(typical_lines(random.Random(3), 20_000))
    with log.open("w") as stream:
        for _ in range(20_000_000 // len(block) + 1):
            stream.write(block)
        stream.write("ImportError: libatb.so: cannot open shared object file: No such file or directory\n")
    known_faults.load()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, reading = quickest_of_three(log)
    assert seconds < 1.0
    assert reading.primary is not None
    assert reading.primary.fault == "nnal-not-installed-or-sourced"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.slow
def test_two_hundred_megabytes_in_five_seconds(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    rng = random.Random(4)
    with log.open("w") as stream:
        size = 0
        while size < 200_000_000:
            block = "".join(typical_lines(rng, 20_000))
            size += stream.write(block)
        stream.write("RuntimeError: Sync, error code is 507014\n")
    seconds, reading = quickest_of_three(log)
    assert seconds < 5.0
    assert reading.primary is not None
    assert reading.primary.fault == "aicore-timeout"


@pytest.mark.slow
@pytest.mark.parametrize("distinct", [False, True])
def test_two_hundred_megabytes_of_errors_in_five_seconds(tmp_path: Path, distinct: bool) -> None:
    """Alike but for names and codes, or every line another one."""
    log = tmp_path / "run.log"
    names = itertools.islice(itertools.product("ghijklmnopqrstuvwxyz", repeat=6), 0, None, 23)
    few = itertools.cycle(list(itertools.islice(names, 50_000)))
    codes = itertools.cycle([507014, 507035, 561103, 107002])
    with log.open("w") as stream:
        size = 0
        while size < 200_000_000:
            lines = (
                f"(Worker pid=9) ERROR 11-29 10:07:00 [core_{''.join(name)}.py:8] RuntimeError: NPU function error: "
                f"call {''.join(name)} failed, error code is {code}\n"
                for name, code in zip(itertools.islice(names if distinct else few, 20_000), codes, strict=False)
            )
            size += stream.write("".join(lines))
    seconds, reading = quickest_of_three(log)
    assert seconds < 5.0
    assert reading.verdict == "fault"
