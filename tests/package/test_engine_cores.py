"""Cores that NPU engines are bound to, found in a tree that looks like /proc, and the sandbox's slots off them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ascent.host.engine_cores import BoundEngine, bound_engines, cores_beside_engines, expand
from ascent.sandbox import Sandbox, StdioTest
from ascent.sandbox import pool as pool_module
from ascent.sandbox.types import Program


def thread(proc: Path, process: int, number: int, name: str, cores: str) -> None:
    folder = proc / str(process) / "task" / str(number)
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\t{name}\nUmask:\t0022\nCpus_allowed:\tff\nCpus_allowed_list:\t{cores}\n")


def listed(cores: list[int]) -> str:
    return ",".join(map(str, cores))


def bind(proc: Path, process: int, pool: list[int]) -> None:
    """As vllm-ascend 0.23 assigns a pool: two for interrupts, then the process, `acl_thread`, `release_thread`."""
    thread(proc, process, process, "python", listed(pool[2:-2]))
    thread(proc, process, process + 1, "pt_autograd_0", listed(pool[2:-2]))
    thread(proc, process, process + 2, "acl_thread", listed(pool[-2:-1]))
    thread(proc, process, process + 3, "release_thread", listed(pool[-1:]))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Some processes that are none of an engine, and names that are no processes."""
    thread(tmp_path, 1, 1, "systemd", "0-63")
    thread(tmp_path, 50, 50, "taskset", "7")
    thread(tmp_path, 60, 60, "python", "0-63")
    thread(tmp_path, 60, 61, "acl_thread", "0-63")  # an engine on a machine where nothing is bound
    (tmp_path / "70").mkdir()  # it has just ended
    (tmp_path / "sys").mkdir()
    return tmp_path


ALL = frozenset(range(64))


def test_unbound_engines_leave_everything(proc: Path) -> None:
    assert cores_beside_engines(ALL, proc) == ALL


def test_cores_of_no_npu_are_taken_first(proc: Path) -> None:
    """Two of four NPUs are in use, 16 cores each: the other 32 are free."""
    bind(proc, 100, list(range(16)))
    bind(proc, 200, list(range(32, 48)))
    assert sorted(bound_engines(ALL, proc), key=lambda engine: min(engine.main)) == [
        BoundEngine(frozenset(range(2, 14)), frozenset({0, 1, 14, 15})),
        BoundEngine(frozenset(range(34, 46)), frozenset({32, 33, 46, 47})),
    ]
    assert cores_beside_engines(ALL, proc) == frozenset(range(16, 32)) | frozenset(range(48, 64))


def test_interrupts_and_single_threads_are_left_alone_where_all_npus_are_in_use(proc: Path) -> None:
    for number in range(4):
        bind(proc, 100 * (number + 1), list(range(16 * number, 16 * number + 16)))
    left = cores_beside_engines(ALL, proc)
    assert left == frozenset(core for core in ALL if core % 16 not in (0, 1, 14, 15))


def test_only_allowed_cores_are_given(proc: Path) -> None:
    """A container with the cores of one NPU and a few more."""
    allowed = frozenset([*range(16, 32), 40, 41])
    bind(proc, 100, list(range(16, 32)))
    assert cores_beside_engines(allowed, proc) == {40, 41}
    assert cores_beside_engines(frozenset(range(16, 32)), proc) == frozenset(range(18, 30))


def test_cores_as_the_kernel_writes_them() -> None:
    assert expand("0-2,5,7-8\n") == {0, 1, 2, 5, 7, 8}
    assert expand("") == frozenset()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    assert expand(status.split("Cpus_allowed_list:\t")[1].split("\n")[0]) == os.sched_getaffinity(0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_slots_move_off_engines_that_start_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    program, one = Program("import os\nprint(len(os.sched_getaffinity(0)))"), min(os.sched_getaffinity(0))
    with Sandbox(slots=1, require="none", nice=0) as sandbox:

        def cores() -> bool:
            """Whether a program has one core."""
            return sandbox.submit(program, [StdioTest("", "1")]).result().all_passed

        assert not cores()
        sandbox.keep_off_engines()
        assert not cores()
        monkeypatch.setattr(pool_module, "cores_beside_engines", lambda allowed: frozenset({one}))
        sandbox.keep_off_engines()
        assert cores()
        assert cores()
        assert sandbox.stats.slot_restarts == 0
        monkeypatch.undo()
        sandbox.keep_off_engines()  # the engine is gone
