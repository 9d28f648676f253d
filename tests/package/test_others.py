"""How much of the machine others use, as /proc has it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascent.host import others

_BUSY = "import time\nuntil = time.monotonic() + 30\nprint(1, flush=True)\nwhile time.monotonic() < until: pass"


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process that uses a core."""
    with subprocess.Popen([sys.executable, "-c", _BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_is_ours_only_when_it_is_named(busy: subprocess.Popen[bytes]) -> None:
    """Whatever else runs here: what it uses is counted among the others, and not when it works for us."""
    used = Path(f"/proc/{busy.pid}/stat")
    before = used.read_text().rpartition(")")[2].split()[11:13]
    start = (others.moment(), others.moment([busy.pid]))
    time.sleep(1.0)
    end = (others.moment(), others.moment([busy.pid]))
    after = used.read_text().rpartition(")")[2].split()[11:13]
    seconds = sum(int(b) - int(a) for a, b in zip(before, after, strict=True)) / 100
    with_it, without = (b.others_since(a) for a, b in zip(start, end, strict=True) if a is not None and b is not None)
    assert with_it - without == pytest.approx(seconds, abs=0.1)


def test_what_this_process_uses_is_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(others, "_STAT", stat)
    stat.write_text("cpu  100 100 100 999 999 100 0 0 50 50\ncpu0 1 2 3\n")
    moment = others.moment()
    assert moment is not None
    assert moment.everybody == pytest.approx(4.0)
    assert moment.ours > 0
    later = others.Moment(moment.everybody + 3.0, moment.ours + 1.0, moment.at + 2.0)
    assert later.others_since(moment) == pytest.approx(1.0)
    own = others.Moment(moment.everybody + 1.0, moment.ours + 1.1, moment.at + 2.0)
    assert own.others_since(moment) == 0.0, "counters of different grain"
    stat.unlink()
    assert others.moment() is None


def test_a_process_that_has_ended_used_nothing() -> None:
    assert others.moment([2**22 + 5]) is not None
