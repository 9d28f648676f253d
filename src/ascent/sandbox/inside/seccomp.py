"""The system call filter: an allowlist, as a classic BPF program searched as a tree of number ranges.

A linear list of some three hundred comparisons costs a millisecond to install (the kernel runs it once for
each system call number), a tree of ranges a third of that. Only the process id differs between programs; it
is patched in. Source of the formats: linux/seccomp.h, linux/filter.h,
Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import struct

from ascent.sandbox.inside.syscalls import Architecture, architecture, prctl, syscall

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
EPERM = 0x00050000 | 1
EACCES = 0x00050000 | 13
ENOSYS = 0x00050000 | 38

_LOAD, _JEQ, _JGE, _JSET, _JUMP, _RET, _AND = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06, 0x54
_NR, _ARCH, _ARGS = 0, 4, 16
_X32_BIT = 0x40000000
_OWN_PID = -1  # stands for the process's own id until it is patched in

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TRUNC = 0o1000
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000  # WRONLY RDWR CREAT TRUNC APPEND TMPFILE

_READING = """
    read write readv writev pread64 pwrite64 preadv pwritev close fstat newfstatat stat lstat statx lseek
    mmap mprotect munmap mremap madvise brk rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending
    rt_sigtimedwait rt_sigsuspend sigaltstack access faccessat faccessat2 pipe pipe2 select pselect6 poll
    ppoll sched_yield mincore dup dup2 dup3 pause nanosleep clock_nanosleep clock_gettime clock_getres
    gettimeofday time getitimer setitimer alarm getpid getppid gettid getuid geteuid getgid getegid getresuid
    getresgid getgroups getpgrp getpgid getsid uname fsync fdatasync ftruncate getdents64 getcwd chdir fchdir
    readlink readlinkat umask getrlimit getrusage sysinfo times getcpu sched_getaffinity sched_getparam
    sched_getscheduler sched_get_priority_max sched_get_priority_min futex set_robust_list get_robust_list
    set_tid_address rseq membarrier exit exit_group getrandom eventfd eventfd2 epoll_create epoll_create1
    epoll_ctl epoll_wait epoll_pwait epoll_pwait2 timerfd_create timerfd_settime timerfd_gettime timer_create
    timer_settime timer_gettime timer_delete timer_getoverrun restart_syscall fadvise64 sendto recvfrom
    sendmsg recvmsg shutdown getsockopt getsockname getpeername arch_prctl statfs fstatfs close_range
"""
_CHANGING = "rename renameat renameat2 mkdir mkdirat rmdir unlink unlinkat creat"
_COMPILING = "execve fork vfork wait4 waitid setpgid flock sendfile copy_file_range"

_IOCTLS = (
    0x5401,
    0x5413,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
_FCNTLS = (
    0,
    1,
    2,
    3,
    4,
    1030,
    1032,
    1034,
)  # DUPFD GETFD SETFD GETFL SETFL DUPFD_CLOEXEC GETPIPE_SZ GET_SEALS
_PRCTLS = (3, 15, 16, 0x53564D41)  # GET_DUMPABLE SET_NAME GET_NAME SET_VMA

Instruction = tuple[int, int, int, int]


def _one_of(argument: int, allowed: tuple[int, ...]) -> list[Instruction]:
    """Allows when the low word of an argument is one of `allowed`."""
    code: list[Instruction] = [(_LOAD, 0, 0, _ARGS + 8 * argument)]
    code += [(_JEQ, len(allowed) - position, 0, value) for position, value in enumerate(allowed)]
    return [*code, (_RET, 0, 0, EPERM), (_RET, 0, 0, ALLOW)]


def _clone(threads_only: bool) -> list[Instruction]:
    refuse: Instruction = (_RET, 0, 0, EPERM)
    code: list[Instruction] = [(_LOAD, 0, 0, _ARGS), (_JSET, 0, 1, _CLONE_NAMESPACES), refuse]
    if threads_only:
        code += [(_JSET, 1, 0, _CLONE_THREAD), refuse]
    return [*code, (_RET, 0, 0, ALLOW)]


def _reading_only(flags_argument: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _ARGS + 8 * flags_argument),
        (_JSET, 0, 1, _WRITING),
        (_RET, 0, 0, EACCES),
        (_RET, 0, 0, ALLOW),
    ]


def _opening(flags_argument: int) -> list[Instruction]:
    """Not to truncate what is opened for reading only: early Landlock looks at the mode alone."""
    return [
        (_LOAD, 0, 0, _ARGS + 8 * flags_argument),
        (_AND, 0, 0, _TRUNC | 0o3),
        (_JEQ, 0, 1, _TRUNC),
        (_RET, 0, 0, EACCES),
        (_RET, 0, 0, ALLOW),
    ]


def _stream_pair() -> list[Instruction]:
    """asyncio wakes itself through Unix stream sockets. Datagram sockets could send to any address."""
    return [
        (_LOAD, 0, 0, _ARGS),
        (_JEQ, 0, 3, 1),  # AF_UNIX
        (_LOAD, 0, 0, _ARGS + 8),
        (_AND, 0, 0, 0xF),
        (_JEQ, 1, 0, 1),  # SOCK_STREAM
        (_RET, 0, 0, EPERM),
        (_RET, 0, 0, ALLOW),
    ]


def _rules(profile: str, writable: bool) -> dict[str, int | list[Instruction]]:
    """What happens to each system call; those not named are refused with EPERM."""
    rules: dict[str, int | list[Instruction]] = dict.fromkeys(_READING.split(), ALLOW)
    if writable:
        rules |= dict.fromkeys(_CHANGING.split(), ALLOW)
        rules |= {"open": _opening(1), "openat": _opening(2)}
    else:
        rules |= {"open": _reading_only(1), "openat": _reading_only(2)}
    if profile == "compile":
        rules |= dict.fromkeys(_COMPILING.split(), ALLOW)
    if profile == "execute":
        rules["execve"] = ALLOW
    return rules | {
        "clone": _clone(threads_only=profile != "compile"),
        "clone3": ENOSYS,  # its flags lie in memory, where a filter can't look; libc falls back to clone
        "kill": _one_of(0, (_OWN_PID,)),
        "tkill": _one_of(0, (_OWN_PID,)),
        "tgkill": _one_of(0, (_OWN_PID,)),
        "prlimit64": _one_of(0, (0, _OWN_PID)),
        "socketpair": _stream_pair(),
        "ioctl": _one_of(1, _IOCTLS),
        "fcntl": _one_of(1, _FCNTLS),  # not SETOWN: it sends signals
        "prctl": _one_of(0, _PRCTLS),
    }


def build(arch: Architecture, profile: str = "run", writable: bool = True) -> list[Instruction]:
    """The filter for one architecture and profile (`run`, `compile` or `execute`), with the process id left
    open."""
    rules = _rules(profile, writable)
    known = {arch.numbers[name]: rule for name, rule in rules.items() if name in arch.numbers}
    beyond = max(arch.numbers.values()) + 1
    segments: list[tuple[int, int | list[Instruction]]] = []
    for number in range(beyond):
        rule = known.get(number, EPERM)
        if not segments or segments[-1][1] != rule or isinstance(rule, list):
            segments.append((number, rule))
    segments.append((beyond, ENOSYS))  # newer than this table: libraries know how to do without
    head: list[Instruction] = [(_LOAD, 0, 0, _ARCH), (_JEQ, 1, 0, arch.audit), (_RET, 0, 0, KILL_PROCESS)]
    head.append((_LOAD, 0, 0, _NR))
    if arch.x32:
        head += [(_JGE, 0, 1, _X32_BIT), (_RET, 0, 0, ENOSYS)]
    return head + _tree(segments)


def _tree(segments: list[tuple[int, int | list[Instruction]]]) -> list[Instruction]:
    if len(segments) == 1:
        rule = segments[0][1]
        return list(rule) if isinstance(rule, list) else [(_RET, 0, 0, rule)]
    middle = len(segments) // 2
    left, right = _tree(segments[:middle]), _tree(segments[middle:])
    bound = segments[middle][0]
    if len(left) <= 255:
        return [(_JGE, len(left), 0, bound), *left, *right]
    return [(_JGE, 0, 1, bound), (_JUMP, 0, 0, len(left)), *left, *right]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Filter:
    """One profile's filter, assembled once and installed by each child. Raises OSError on unknown
    architectures."""

    def __init__(self, profile: str, writable: bool = True) -> None:
        arch = architecture()
        if arch is None:
            raise OSError(38, "no system call table for this architecture")
        self._number = arch.numbers["seccomp"]
        code = build(arch, profile, writable)
        if len(code) > 4096:
            raise OSError(7, "the system call filter is too long")
        self._pid_words = [8 * at + 4 for at, (_, _, _, k) in enumerate(code) if k == _OWN_PID]
        words = b"".join(struct.pack("=HBBI", op, jt, jf, k & 0xFFFFFFFF) for op, jt, jf, k in code)
        self._words = ctypes.create_string_buffer(words, len(words))
        self._program = _Program(len(code), ctypes.addressof(self._words))

    def install(self, pid: int) -> None:
        """For this process and everything that it starts, for ever. Needs no_new_privs. Raises OSError."""
        for offset in self._pid_words:
            struct.pack_into("=I", self._words, offset, pid)
        syscall(self._number, 1, 0, ctypes.byref(self._program))  # SECCOMP_SET_MODE_FILTER


def no_new_privileges() -> None:
    """setuid files and file capabilities give nothing any more. Raises OSError."""
    prctl(38, 1)
