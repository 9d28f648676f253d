"""The walls themselves: the filter on both architectures, other users, containers, killed judges, lost slots."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from tests.waiting import wait_until

from ascent.sandbox import (
    FunctionTest,
    LevelUnavailableError,
    Limits,
    Outcome,
    Program,
    Sandbox,
    StdioTest,
)
from ascent.sandbox.attack import processes_below
from ascent.sandbox.inside import landlock, seccomp
from ascent.sandbox.inside.syscalls import AARCH64, X86_64, Architecture

pytestmark = pytest.mark.timeout(1800)
SOURCE = Path(__file__).resolve().parents[2] / "src"
DOUBLE = Program("def double(n): return 2 * n")
TESTS = [FunctionTest("double", (2,), 4)]
ALLOW, EPERM, EACCES, ENOSYS = seccomp.ALLOW, seccomp.EPERM, seccomp.EACCES, seccomp.ENOSYS
PID = 4711


def decide(code: list[seccomp.Instruction], arch: int, number: int, *words: int) -> int:
    """What a filter answers, by the rules of classic BPF."""
    data = {0: number, 4: arch} | {16 + 8 * place: word & 0xFFFFFFFF for place, word in enumerate(words)}
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, k = code[at]
        k = PID if k == -1 else k
        at += 1
        if operation == 0x06:
            return k
        if operation == 0x20:
            accumulator = data.get(k, 0)
        elif operation == 0x05:
            at += k
        elif operation == 0x54:
            accumulator &= k
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[operation]
            at += if_true if holds else if_false


@pytest.mark.parametrize("arch", [X86_64, AARCH64], ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    ("profile", "name", "words", "answer"),
    [
        ("run", "read", (), ALLOW),
        ("run", "openat", (0, 0, 0o101), ALLOW),
        ("run", "socket", (2, 1), EPERM),
        ("run", "socketpair", (1, 1), ALLOW),
        ("run", "socketpair", (2, 1), EPERM),
        ("run", "socketpair", (1, 0o2000001), ALLOW),
        ("run", "socketpair", (1, 2), EPERM),
        ("run", "openat", (0, 0, 0o1000), EACCES),
        ("run", "openat", (0, 0, 0o1102), ALLOW),
        ("run", "truncate", (), EPERM),
        ("run", "clone", (0x3D0F00,), ALLOW),
        ("run", "clone", (17,), EPERM),
        ("run", "clone", (0x10000 | 0x10000000,), EPERM),
        ("compile", "clone", (17,), ALLOW),
        ("compile", "clone", (0x20000000 | 17,), EPERM),
        ("run", "clone3", (), ENOSYS),
        ("run", "kill", (PID, 9), ALLOW),
        ("run", "kill", (1, 9), EPERM),
        ("run", "kill", (-1, 9), EPERM),
        ("run", "tgkill", (PID, PID, 6), ALLOW),
        ("run", "prlimit64", (0, 7), ALLOW),
        ("run", "prlimit64", (1, 7), EPERM),
        ("run", "fcntl", (0, 8, 1), EPERM),
        ("run", "fcntl", (0, 1), ALLOW),
        ("run", "ioctl", (0, 0x5412), EPERM),
        ("run", "prctl", (15,), ALLOW),
        ("run", "prctl", (22,), EPERM),
        ("run", "execve", (), EPERM),
        ("execute", "execve", (), ALLOW),
        ("execute", "execveat", (), EPERM),
        *(
            ("compile", name, (), EPERM)
            for name in [
                "ptrace",
                "process_vm_readv",
                "process_vm_writev",
                "unshare",
                "setns",
                "mount",
                "umount2",
                "pivot_root",
                "chroot",
                "keyctl",
                "add_key",
                "request_key",
                "bpf",
                "io_uring_setup",
                "userfaultfd",
                "memfd_create",
                "perf_event_open",
                "setuid",
                "setresuid",
                "capset",
                "seccomp",
                "landlock_create_ruleset",
                "pidfd_open",
                "pidfd_send_signal",
                "pidfd_getfd",
                "sched_setaffinity",
                "setpriority",
                "fchmod",
                "open_by_handle_at",
                "kexec_load",
                "init_module",
                "finit_module",
                "socket",
                "connect",
                "bind",
                "utimensat",
                "linkat",
                "symlinkat",
            ]
        ),
    ],
)
def test_the_filter_on_both_architectures(
    arch: Architecture, profile: str, name: str, words: tuple[int, ...], answer: int
) -> None:
    code = seccomp.build(arch, profile)
    assert decide(code, arch.audit, arch.numbers[name], *words) == answer


@pytest.mark.parametrize("arch", [X86_64, AARCH64], ids=lambda arch: arch.name)
def test_the_filter_covers_every_number(arch: Architecture) -> None:
    code = seccomp.build(arch)
    allowed = {n for n in range(1024) if decide(code, arch.audit, n) == ALLOW}
    assert allowed <= set(arch.numbers.values())
    assert decide(code, arch.audit, 5000) == ENOSYS
    assert decide(code, 0x40000003, 11) == seccomp.KILL_PROCESS  # i386
    if arch.x32:
        assert decide(code, arch.audit, 0x40000000) == ENOSYS
    read_only = seccomp.build(arch, writable=False)
    assert decide(read_only, arch.audit, arch.numbers["openat"], 0, 0, 0o100) == EACCES
    assert decide(read_only, arch.audit, arch.numbers["openat"], 0, 0, 0) == ALLOW
    assert decide(read_only, arch.audit, arch.numbers["unlinkat"]) == EPERM


def test_the_numbers_are_the_kernels() -> None:
    headers = {
        X86_64: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        AARCH64: Path("/usr/include/asm-generic/unistd.h"),
    }
    for arch, header in headers.items():
        if not header.exists():
            pytest.skip(f"no {header}")
        words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR")]
        defined = {
            word[1].partition("_")[2][1:].partition("_")[2]: word[2] for word in words if word[2:] and word[2].isdigit()
        }
        defined.setdefault("newfstatat", defined.get("fstatat", ""))
        numbers = {name: str(number) for name, number in arch.numbers.items()}
        assert numbers == {name: defined.get(name) for name in numbers}


# Elsewhere: each of these scripts runs in a process of its own.

USE = """
import sys
from ascent.sandbox import *
test = [FunctionTest("double", (2,), 4)]
with Sandbox(slots=1, require=REQUIRE, nice=0) as sandbox:
    verdict = sandbox.submit(Program("def double(n): return 2 * n"), test).result()
    attack = sandbox.submit(Program(ATTACK), [FunctionTest("attack", (), [])]).result()
    threads = sandbox.submit(Program(THREADS), [StdioTest("", "10")]).result()
    print(sandbox.level, verdict.passed, attack.outcomes[0], attack.error, threads.outcomes[0], threads.error)
"""
ATTACK = """
import os, socket
def attack():
    did = []
    for name, attempt in {
        "read": lambda: open(SECRET).read(),
        "write": lambda: open(SECRET + ".x", "w"),
        "socket": lambda: socket.socket(),
        "fork": lambda: os.fork() or os._exit(0),
        "kill": lambda: os.kill(os.getppid(), 0),
        "chmod": lambda: os.chmod(SECRET, 0o777),
    }.items():
        try:
            attempt()
            did.append(name)
        except OSError:
            pass
    return did
"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(int, "1234")))
"""
# What a container's default profile denies: new namespaces, mounts, and the like.
CONTAINER = """
import ctypes, struct
from ascent.sandbox.inside.syscalls import architecture, prctl, syscall
table = architecture()
denied = [table.numbers[name] for name in ("unshare", "mount", "umount2", "setns", "pivot_root", "pidfd_getfd")]
code = [(0x20, 0, 0, 0)] + [(0x15, len(denied) - i, 0, n) for i, n in enumerate(denied)]
code += [(6, 0, 0, 0x7FFF0000), (6, 0, 0, 0x50001)]
words = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
class P(ctypes.Structure):
    _fields_ = (("n", ctypes.c_ushort), ("f", ctypes.c_void_p))
prctl(38, 1)
syscall(table.numbers["seccomp"], 1, 0, ctypes.byref(P(len(code), ctypes.addressof(words))))
"""


def interpreter_for_all() -> str:
    """One that other users can run."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            told = subprocess.run(
                [path, "-c", "import sys; print(sys.version_info >= (3, 11))"],
                user=23456,
                group=23456,
                capture_output=True,
            )
        except OSError:
            continue
        if told.stdout.strip() == b"True":
            return path
    pytest.skip("no Python 3.11 that other users can run")


def run_elsewhere(tmp_path: Path, prelude: str, user: int | None, require: str = "confined") -> str:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    tmp_path.chmod(0o755)
    attack = ATTACK.replace("SECRET", repr(str(secret)))
    code = prelude + USE.replace("ATTACK", repr(attack)).replace("THREADS", repr(THREADS)).replace(
        "REQUIRE", repr(require)
    )
    command = [sys.executable if user is None else interpreter_for_all(), "-c", code]
    environment = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "TMPDIR": "/tmp"}
    done = subprocess.run(
        command, user=user, group=user, env=environment, capture_output=True, text=True, timeout=1500, cwd="/"
    )
    return done.stdout + done.stderr


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="drops privileges")


@pytest.mark.parametrize("container", [False, True], ids=["bare", "container"])
@pytest.mark.parametrize("user", [None, pytest.param(23456, marks=needs_root)], ids=["own user", "unprivileged"])
def test_it_holds_for_every_user_and_in_containers(tmp_path: Path, user: int | None, container: bool) -> None:
    said = run_elsewhere(tmp_path, CONTAINER if container else "", user)
    level, passed, outcome, error, threads, *_ = said.split()
    assert (passed, outcome, error, threads) == ("1", "passed", "None", "passed"), said
    assert level == "confined" if container else level in ("confined", "namespaced"), said


def test_a_level_that_a_container_denies_is_refused_with_the_reason(tmp_path: Path) -> None:
    said = run_elsewhere(tmp_path, CONTAINER, None, require="namespaced")
    assert "LevelUnavailableError: level 'namespaced' was required, but this machine gives 'confined'" in said
    assert "namespaces: the kernel or a container denies new namespaces: Operation not permitted" in said
    assert "CAP_SYS_ADMIN" in said


def test_no_level_is_silently_weaker_than_required() -> None:
    with pytest.raises(LevelUnavailableError, match="left out on request"):
        Sandbox(slots=1, require="namespaced", at_most="confined")
    with pytest.raises(LevelUnavailableError, match="this machine gives 'none'"):
        Sandbox(slots=1, without=("seccomp",))
    with Sandbox(slots=1, require="none", at_most="none", nice=0) as open_one:
        assert open_one.level == "none"


@needs_root
def test_syscall_only_reads_and_never_writes(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        from ascent.sandbox import *
        source = '''
        def writes():
            try:
                open("x", "w")
            except OSError:
                return "denied"
        '''
        with Sandbox(slots=1, require="syscall-only", at_most="syscall-only", nice=0) as sandbox:
            test = [FunctionTest("writes", (), "denied")]
            print(sandbox.level, sandbox.submit(Program(source), test).result().all_passed)
        """
    )
    done = subprocess.run(
        [interpreter_for_all(), "-c", script], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["syscall-only", "True"], done.stderr


JUDGE = """
import signal, sys, os, threading
from ascent.sandbox import *
{prelude}
sandbox = Sandbox(slots=2, nice=0)
sleeper = Program("import time\\nopen('kept', 'w').write('x')\\ntime.sleep(600)")
futures = [sandbox.submit(sleeper, [StdioTest("", "")], Limits(wall_seconds=600)) for _ in range(2)]
print("ready", flush=True)
futures[0].result()
"""


def test_a_killed_judge_takes_everything_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}
    tmp_path.chmod(0o755)
    command = [sys.executable, "-c", JUDGE.format(prelude="")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as judge:
        assert judge.stdout is not None
        assert judge.stdout.readline() == b"ready\n"
        wait_until(lambda: len(processes_below(judge.pid)) >= 6, "both slots with their programs")
        below = processes_below(judge.pid)
        assert len(below) >= 6
        judge.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), "the end of all slots")
    wait_until(lambda: not list(tmp_path.rglob("kept")), "the end of what the programs kept")
    assert list(tmp_path.glob("ascent-sandbox-*"))
    again = subprocess.run(
        [sys.executable, "-c", "from ascent.sandbox import Sandbox\nSandbox(slots=1, nice=0).close()"],
        env=environment,
    )
    assert again.returncode == 0
    assert not list(tmp_path.glob("ascent-sandbox-*"))


REAPER = """
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
"""
# A set whose members all have the same hash, as raw bytes: it hangs whoever decodes it.
HANG = """
import os, struct
text = b'["l", ["s",' + b",".join(b'["i", "%x"]' % (i * (2**61 - 1)) for i in range(100000)) + b'], null]'
os.write(3, struct.pack("<cII", b"V", 0, len(text)) + text)
def f(): return 2
"""
WORKS = """
import os, signal
from ascent.sandbox import *
{prelude}
with Sandbox(slots=1, nice=0) as sandbox:
    for _ in range(3):
        verdict = sandbox.submit(Program("def f(): return 1"), [FunctionTest("f", (), 1)]).result()
        os.kill(os.getpid(), signal.SIGCHLD)
    hang = sandbox.submit(Program({hang!r}), [FunctionTest("f", (), 1)]).result()
    print(os.getpid() == 1, verdict.all_passed, hang.passed)
"""


@pytest.mark.parametrize("first", [False, pytest.param(True, marks=needs_root)], ids=["reaper", "process 1"])
def test_judges_that_reap_every_child_or_are_process_1(first: bool) -> None:
    command = [sys.executable, "-c", WORKS.format(prelude=REAPER, hang=HANG)]
    if first:
        command = ["unshare", "--pid", "--fork", "--mount-proc", *command]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.stdout.split() == [str(first), "True", "0"], done.stderr


def test_nothing_of_the_judge_is_inherited(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    source = (
        "import os, sys\n"
        "def names(): return sorted(os.environ)\n"
        "def descriptors():\n    found = []\n    for fd in range(256):\n        try:\n            os.fstat(fd)\n"
        "            found.append(fd)\n        except OSError:\n            pass\n    return found\n"
    )
    with Sandbox(slots=1, nice=0) as fresh:
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in processes_below(os.getpid())]
        tests = [
            FunctionTest("names", (), ["HOME", "LANG", "PATH", "TMPDIR"]),
            FunctionTest("descriptors", (), [0, 1, 2, 3]),
        ]
        assert fresh.submit(Program(source), tests).result().all_passed
    assert not any(b"hf_secret" in environment for environment in environments)
    os.close(reader)
    os.close(writer)


def test_a_sandbox_outlives_the_thread_that_opened_it() -> None:
    opened: list[Sandbox] = []
    thread = threading.Thread(target=lambda: opened.append(Sandbox(slots=1, nice=0)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with opened[0] as kept:
        assert kept.submit(DOUBLE, TESTS).result().all_passed
        assert kept.stats.slot_restarts == 0


def slots() -> set[int]:
    """Process ids of this process's slots."""
    return {pid for pid in children_of(os.getpid()) if b"inside.supervisor" in cmdline(pid)}


def children_of(parent: int) -> set[int]:
    return {pid for pid in processes_below(parent) if stat_of(pid)[1] == str(parent)}


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def stat_of(pid: int) -> list[str]:
    """State, parent and so on, as in /proc/PID/stat after the name; states are "gone" for one that isn't there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["gone", "gone"]


def kill_while_it_sleeps(one: Sandbox, others: set[int], idle: int) -> None:
    """Kill the slot that isn't one of `others`, once its program is at work and sleeps; `idle` is how many processes
    a slot has below it without one."""

    seen = []

    def asleep() -> bool:
        below = [processes_below(slot) for slot in slots() - others]
        seen.append(len(below) == 1 and len(below[0]) > idle and stat_of(max(below[0]))[0] == "S")
        return len(seen) >= 5 and all(seen[-5:])

    wait_until(asleep, "a program at work")
    (slot,) = slots() - others
    os.kill(slot, signal.SIGKILL)
    others.add(slot)


def idle_processes(others: set[int]) -> int:
    (slot,) = slots() - others
    return len(processes_below(slot))


def test_a_slot_that_dies_is_replaced_and_its_program_tried_again() -> None:
    slow = Program("import time\ndef double(n):\n    time.sleep(2)\n    return 2 * n")
    others = slots()
    with Sandbox(slots=1, nice=0) as one:
        idle = idle_processes(others)
        future = one.submit(slow, TESTS)
        kill_while_it_sleeps(one, others, idle)
        assert future.result().all_passed
        assert one.stats.slot_restarts == 1
        assert one.submit(DOUBLE, TESTS).result().all_passed


def test_a_program_whose_slots_keep_dying_is_masked_and_not_failed() -> None:
    slow = Program("import time\ndef double(n):\n    time.sleep(600)\n    return 2 * n")
    others = slots()
    with Sandbox(slots=1, nice=0) as one:
        idle = idle_processes(others)
        future = one.submit(slow, TESTS, Limits(wall_seconds=600))
        for _ in range(2):
            kill_while_it_sleeps(one, others, idle)
        verdict = future.result()
        assert "slot died" in str(verdict.infrastructure_error)
        assert verdict.outcomes == (Outcome.NOT_RUN,)
        assert one.submit(DOUBLE, TESTS).result().all_passed
        assert one.stats.infrastructure_errors == 1


def test_a_comparer_that_is_killed_fails_nobody() -> None:
    before = processes_below(os.getpid())
    with Sandbox(slots=1, nice=0) as one:
        for pid in children_of(os.getpid()) - before - slots():
            os.kill(pid, signal.SIGKILL)
        assert one.submit(DOUBLE, TESTS).result().all_passed


def test_closing_leaves_nothing() -> None:
    before = len(processes_below(os.getpid()))
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Sandbox(slots=2, nice=0) as two:
            two.run_many([(DOUBLE, TESTS)] * 4)
            two.submit(Program("print(1)"), [StdioTest("", "1")]).result()
    assert len(processes_below(os.getpid())) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("version", range(1, landlock.abi() + 1))
def test_older_versions_of_landlock_are_spoken(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel answers to the requests of all versions before its own."""
    monkeypatch.setattr(landlock, "abi", lambda: version)
    os.close(landlock.ruleset([("/usr", landlock.READ_EXECUTE), ("/dev/null", landlock.READ_WRITE_FILE)]))


def test_a_busy_machine_makes_nobody_late() -> None:
    """Slots are modest: beside other work a program may wait for a processor for longer than its wall limit."""
    burn = "print(flush=True)\nwhile True: pass"
    hogs = [
        subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(4 * len(os.sched_getaffinity(0)))
    ]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            hog.stdout.readline()
        with Sandbox(slots=2, limits=Limits(wall_seconds=1.0, cpu_seconds=20.0), nice=10) as two:
            for millions in (5, 10, 20):  # the least takes less than a tenth of the limit of CPU time
                source = f"def double(n):\n    sum(range({millions}_000_000))\n    return 2 * n"
                verdicts = two.run_many([(Program(source), TESTS)] * 2)
                assert [verdict.outcomes for verdict in verdicts] == [(Outcome.PASSED,)] * 2, verdicts
                if max(verdict.seconds for verdict in verdicts) > 1.0:
                    return
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()
    pytest.skip("the machine wasn't busy enough to tell")


def test_a_slot_that_dies_over_a_deep_tree_is_replaced_all_the_same() -> None:
    source = (
        "import os, time\ndef double(n):\n    for _ in range(1200):\n        os.mkdir('d')\n        os.chdir('d')\n"
        "    time.sleep(600)\n"
    )
    others = slots()
    with Sandbox(slots=1, at_most="confined", nice=0) as one:
        idle = idle_processes(others)
        future = one.submit(Program(source), TESTS, Limits(wall_seconds=600, cpu_seconds=60))
        for _ in range(2):
            kill_while_it_sleeps(one, others, idle)
        assert future.result().infrastructure_error is not None
        assert one.submit(DOUBLE, TESTS).result().all_passed


def test_a_program_takes_little_of_a_core_that_others_need() -> None:
    """Beside work of this process, on one core: also where the kernel shares the CPU out by session."""
    mine = os.sched_getaffinity(0)
    spins = Program("import time\nend = time.monotonic() + 1.0\nwhile time.monotonic() < end: pass")
    with Sandbox(slots=1) as made:
        made.submit(DOUBLE, TESTS).result()
        os.sched_setaffinity(0, {min(mine)})
        try:
            for pid in processes_below(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(pid, {min(mine)})
            asked = made.submit(spins, [StdioTest("", "")])
            began = time.thread_time()
            while not asked.done():
                pass
            here, there = time.thread_time() - began, asked.result().cpu_seconds
        finally:
            os.sched_setaffinity(0, mine)
    assert there < here / 3, f"{there:.2f} s beside {here:.2f} s"
