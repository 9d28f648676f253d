"""Cores and memory that a process may use, on trees of files that look like those of the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ascent.errors import InputError
from ascent.host import machine_share
from ascent.host.machine_share import cores_of_this_process, memory_left, memory_limit, usable_cores

V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
CPU = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
MEMORY = "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
NO_LIMIT_OF_VERSION_1 = 9223372036854771712
DATA = "25 1 259:1 / /data rw - ext4 /dev/sda rw"


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this process nor its parent is bound to some of 16 cores, and no launcher started it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.delenv(machine_share.PROCESSES_VARIABLE, raising=False)


def tree(root: Path, groups: str, mounts: list[str], files: Mapping[str, object]) -> Path:
    """A machine whose /sys/fs/cgroup has these files."""
    process = root / "proc/self"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(groups + "\n")
    (process / "mountinfo").write_text("\n".join([DATA, *mounts]) + "\n")
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("400000 100000", 4),
        ("50000 10000", 5),
        ("250000 100000", 2),
        ("199999 100000", 1),
        ("30000 100000", 1),
        ("max 100000", 16),
        ("6400000 100000", 16),
        ("", 16),
        ("nonsense", 16),
        ("100000 0", 16),
    ],
)
def test_a_quota_of_version_2(tmp_path: Path, quota: str, cores: int) -> None:
    assert usable_cores(tree(tmp_path, "0::/", [V2], {"cpu.max": quota})) == cores


def test_the_lowest_quota_of_nested_groups_holds(tmp_path: Path) -> None:
    files = {
        "cpu.max": "1500000 100000",
        "pods/cpu.max": "300000 100000",
        "pods/one/cpu.max": "max 100000",
        "pods/one/train/cpu.max": "800000 100000",
        "pods/other/cpu.max": "100000 100000",
        "pods/one/train/below/cpu.max": "100000 100000",
    }
    assert usable_cores(tree(tmp_path, "0::/pods/one/train", [V2], files)) == 3


def test_a_group_without_the_controller_is_bounded_by_those_above(tmp_path: Path) -> None:
    assert usable_cores(tree(tmp_path, "0::/user.slice/session", [V2], {"user.slice/cpu.max": "200000 100000"})) == 2


@pytest.mark.parametrize(("quota", "cores"), [(350000, 3), (-1, 16), (50000, 1)])
def test_a_quota_of_version_1(tmp_path: Path, quota: int, cores: int) -> None:
    groups = "4:memory:/a\n3:cpu,cpuacct:/batch/job\n1:name=systemd:/\n0::/"
    files = {
        "cpu,cpuacct/batch/job/cpu.cfs_quota_us": quota,
        "cpu,cpuacct/batch/job/cpu.cfs_period_us": 100000,
        "cpu,cpuacct/cpu.cfs_quota_us": -1,
        "cpu,cpuacct/cpu.cfs_period_us": 100000,
        "memory/cpu.cfs_quota_us": 100000,
        "memory/cpu.cfs_period_us": 100000,
    }
    assert usable_cores(tree(tmp_path, groups, [MEMORY, CPU], files)) == cores


def test_a_group_is_found_below_a_mount_that_shows_a_part(tmp_path: Path) -> None:
    """A container without a namespace for its groups: the host's path, and the container's part of the files."""
    mount = "30 24 0:26 /docker/1f /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
    files = {"cpu.max": "600000 100000", "inner/cpu.max": "400000 100000"}
    assert usable_cores(tree(tmp_path / "own", "0::/docker/1f", [mount], files)) == 6
    assert usable_cores(tree(tmp_path / "inner", "0::/docker/1f/inner", [mount], files)) == 4
    for elsewhere in ("/docker/2e", "/../../user.slice"):
        assert usable_cores(tree(tmp_path / elsewhere.strip("./"), f"0::{elsewhere}", [mount], files)) == 6


def test_a_machine_that_says_nothing_is_bounded_by_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores(tmp_path) == 16
    assert usable_cores(tree(tmp_path, "0::/a", [V2], {})) == 16
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    assert usable_cores(tmp_path) == 2


def test_cores_are_shared_by_the_processes_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = tree(tmp_path / "limited", "0::/", [V2], {"cpu.max": "1300000 100000"})
    assert (cores_of_this_process(tmp_path), cores_of_this_process(limited)) == (16, 13)
    for processes, shares in (("1", (16, 13)), ("4", (4, 3)), ("16", (1, 1)), ("100", (1, 1))):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert (cores_of_this_process(tmp_path), cores_of_this_process(limited)) == shares
    assert (usable_cores(tmp_path), usable_cores(limited)) == (16, 13)


def test_a_process_with_cores_of_its_own_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers bind processes to cores of their own, or two of four to those near their devices."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    for own, share in ((4, 4), (8, 4), (2, 2), (16, 4)):
        affinity = {0: set(range(own)), os.getppid(): set(range(16))}
        monkeypatch.setattr(os, "sched_getaffinity", affinity.__getitem__)
        assert cores_of_this_process(tmp_path) == share

    def gone(process: int) -> set[int]:
        if process:
            raise ProcessLookupError
        return set(range(8))

    monkeypatch.setattr(os, "sched_getaffinity", gone)
    assert cores_of_this_process(tmp_path) == 2


@pytest.mark.parametrize("wrong", ["0", "-2", "four", ""])
def test_a_wrong_number_of_processes_is_refused(tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", wrong)
    with pytest.raises(InputError, match=f"LOCAL_WORLD_SIZE='{wrong}' is no number of processes"):
        cores_of_this_process(tmp_path)


def test_memory_limits(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    files: Mapping[str, object] = {"memory.max": "max", "a/memory.max": 4 << 30, "a/b/memory.max": 8 << 30}
    assert memory_limit(tree(tmp_path / "nested", "0::/a/b", [V2], files)) == 4 << 30
    assert memory_limit(tree(tmp_path / "none", "0::/", [V2], files)) is None
    files = {"memory/memory.limit_in_bytes": NO_LIMIT_OF_VERSION_1, "memory/a/memory.limit_in_bytes": 1 << 30}
    groups = "4:memory:{}\n0::/"
    assert memory_limit(tree(tmp_path / "one", groups.format("/a"), [CPU, MEMORY], files)) == 1 << 30
    assert memory_limit(tree(tmp_path / "free", groups.format("/"), [CPU, MEMORY], files)) is None


def test_memory_that_is_left(tmp_path: Path) -> None:
    assert memory_left(tmp_path) is None
    files: Mapping[str, object] = {
        "a/memory.max": 1000,
        "a/memory.current": 800,
        "a/memory.stat": "anon 500\ninactive_file 300\nactive_file 7",
        "a/b/memory.max": 600,
        "a/b/memory.current": 50,
    }
    assert memory_left(tree(tmp_path / "two", "0::/a/b", [V2], files)) == 500
    files = {
        "memory/memory.limit_in_bytes": 1000,
        "memory/memory.usage_in_bytes": 1500,
        "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 400",
    }
    assert memory_left(tree(tmp_path / "one", "4:memory:/\n0::/", [MEMORY], files)) == 0


def test_this_machine_is_read() -> None:
    """In a process of its own, bound to one core: what the kernel's own files hold is understood."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from ascent.host.machine_share import *\n"
        "print(usable_cores(), cores_of_this_process(), memory_limit(), memory_left())"
    )
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    cores, share, limit, left = done.stdout.split()
    assert (cores, share) == ("1", "1")
    assert limit == left == "None" or int(limit) >= int(left) >= 0
