"""System calls that Python doesn't wrap, and their numbers by architecture (from the kernel's own
headers)."""

from __future__ import annotations

import ctypes
import os


class Architecture:
    """The numbers and the audit identity of one architecture."""

    def __init__(self, name: str, audit: int, x32: bool, table: str) -> None:
        self.name = name
        self.audit = audit  # AUDIT_ARCH_* of linux/audit.h
        self.x32 = x32  # numbers with bit 30 set are a second calling convention
        self.numbers = {pair.split("=")[0]: int(pair.split("=")[1]) for pair in table.split()}


X86_64 = Architecture(
    "x86_64",
    0xC000003E,
    True,
    """
    read=0 write=1 open=2 close=3 stat=4 fstat=5 lstat=6 poll=7 lseek=8 mmap=9 mprotect=10 munmap=11 brk=12
    rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 ioctl=16 pread64=17 pwrite64=18 readv=19 writev=20
    access=21 pipe=22 select=23 sched_yield=24 mremap=25 mincore=27 madvise=28 dup=32 dup2=33 pause=34
    nanosleep=35 getitimer=36 alarm=37 setitimer=38 getpid=39 sendfile=40 socket=41 connect=42 sendto=44
    recvfrom=45 sendmsg=46 recvmsg=47 shutdown=48 bind=49 getsockname=51 getpeername=52 socketpair=53
    getsockopt=55 clone=56 fork=57 vfork=58 execve=59 exit=60 wait4=61 kill=62 uname=63 fcntl=72 flock=73
    fsync=74 fdatasync=75 truncate=76 ftruncate=77 getcwd=79 chdir=80 fchdir=81 rename=82 mkdir=83 rmdir=84
    creat=85 link=86 unlink=87 symlink=88 readlink=89 chmod=90 fchmod=91 umask=95 gettimeofday=96
    getrlimit=97 getrusage=98 sysinfo=99 times=100 ptrace=101 getuid=102 getgid=104 setuid=105 geteuid=107
    getegid=108 setpgid=109 getppid=110 getpgrp=111 setsid=112 getgroups=115 setresuid=117 getresuid=118
    getresgid=120 getpgid=121 getsid=124 capset=126 rt_sigpending=127 rt_sigtimedwait=128 rt_sigsuspend=130
    sigaltstack=131 statfs=137 fstatfs=138 setpriority=141 sched_getparam=143 sched_getscheduler=145
    sched_get_priority_max=146 sched_get_priority_min=147 mlock=149 pivot_root=155 prctl=157 arch_prctl=158
    setrlimit=160 chroot=161 mount=165 umount2=166 init_module=175 gettid=186 tkill=200 time=201 futex=202
    sched_setaffinity=203 sched_getaffinity=204 epoll_create=213 getdents64=217 set_tid_address=218
    restart_syscall=219 fadvise64=221 timer_create=222 timer_settime=223 timer_gettime=224
    timer_getoverrun=225 timer_delete=226 clock_gettime=228 clock_getres=229 clock_nanosleep=230
    exit_group=231 epoll_wait=232 epoll_ctl=233 tgkill=234 kexec_load=246 waitid=247 add_key=248
    request_key=249 keyctl=250 openat=257 mkdirat=258 newfstatat=262 unlinkat=263 renameat=264 linkat=265
    symlinkat=266 readlinkat=267 fchmodat=268 faccessat=269 pselect6=270 ppoll=271 unshare=272
    set_robust_list=273 get_robust_list=274 utimensat=280 epoll_pwait=281 timerfd_create=283 eventfd=284
    timerfd_settime=286 timerfd_gettime=287 eventfd2=290 epoll_create1=291 dup3=292 pipe2=293 preadv=295
    pwritev=296 perf_event_open=298 prlimit64=302 name_to_handle_at=303 open_by_handle_at=304 setns=308
    getcpu=309 process_vm_readv=310 process_vm_writev=311 finit_module=313 renameat2=316 seccomp=317
    getrandom=318 memfd_create=319 bpf=321 execveat=322 userfaultfd=323 membarrier=324 copy_file_range=326
    statx=332 rseq=334 pidfd_send_signal=424 io_uring_setup=425 pidfd_open=434 clone3=435 close_range=436
    pidfd_getfd=438 faccessat2=439 epoll_pwait2=441 landlock_create_ruleset=444 landlock_add_rule=445
    landlock_restrict_self=446
    """,
)
AARCH64 = Architecture(
    "aarch64",
    0xC00000B7,
    False,
    """
    getcwd=17 eventfd2=19 epoll_create1=20 epoll_ctl=21 epoll_pwait=22 dup=23 dup3=24 fcntl=25 ioctl=29
    flock=32 mkdirat=34 unlinkat=35 symlinkat=36 linkat=37 renameat=38 umount2=39 mount=40 pivot_root=41
    statfs=43 fstatfs=44 truncate=45 ftruncate=46 faccessat=48 chdir=49 fchdir=50 chroot=51 fchmod=52
    fchmodat=53 openat=56 close=57 pipe2=59 getdents64=61 lseek=62 read=63 write=64 readv=65 writev=66
    pread64=67 pwrite64=68 preadv=69 pwritev=70 sendfile=71 pselect6=72 ppoll=73 readlinkat=78 newfstatat=79
    fstat=80 fsync=82 fdatasync=83 timerfd_create=85 timerfd_settime=86 timerfd_gettime=87 utimensat=88
    capset=91 exit=93 exit_group=94 waitid=95 set_tid_address=96 unshare=97 futex=98 set_robust_list=99
    get_robust_list=100 nanosleep=101 getitimer=102 setitimer=103 kexec_load=104 init_module=105
    timer_create=107 timer_gettime=108 timer_getoverrun=109 timer_settime=110 timer_delete=111
    clock_gettime=113 clock_getres=114 clock_nanosleep=115 ptrace=117 sched_getscheduler=120
    sched_getparam=121 sched_setaffinity=122 sched_getaffinity=123 sched_yield=124
    sched_get_priority_max=125 sched_get_priority_min=126 restart_syscall=128 kill=129 tkill=130 tgkill=131
    sigaltstack=132 rt_sigsuspend=133 rt_sigaction=134 rt_sigprocmask=135 rt_sigpending=136
    rt_sigtimedwait=137 rt_sigreturn=139 setpriority=140 setuid=146 setresuid=147 getresuid=148
    getresgid=150 times=153 setpgid=154 getpgid=155 getsid=156 setsid=157 getgroups=158 uname=160
    getrlimit=163 setrlimit=164 getrusage=165 umask=166 prctl=167 getcpu=168 gettimeofday=169 getpid=172
    getppid=173 getuid=174 geteuid=175 getgid=176 getegid=177 gettid=178 sysinfo=179 socket=198
    socketpair=199 bind=200 connect=203 getsockname=204 getpeername=205 sendto=206 recvfrom=207
    getsockopt=209 shutdown=210 sendmsg=211 recvmsg=212 brk=214 munmap=215 mremap=216 add_key=217
    request_key=218 keyctl=219 clone=220 execve=221 mmap=222 fadvise64=223 mprotect=226 mlock=228
    mincore=232 madvise=233 perf_event_open=241 wait4=260 prlimit64=261 name_to_handle_at=264
    open_by_handle_at=265 setns=268 process_vm_readv=270 process_vm_writev=271 finit_module=273
    renameat2=276 seccomp=277 getrandom=278 memfd_create=279 bpf=280 execveat=281 userfaultfd=282
    membarrier=283 copy_file_range=285 statx=291 rseq=293 pidfd_send_signal=424 io_uring_setup=425
    pidfd_open=434 clone3=435 close_range=436 pidfd_getfd=438 faccessat2=439 epoll_pwait2=441
    landlock_create_ruleset=444 landlock_add_rule=445 landlock_restrict_self=446
    """,
)
ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


def architecture() -> Architecture | None:
    """That of this machine, or None when no table is kept for it."""
    return ARCHITECTURES.get(os.uname().machine)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.restype = ctypes.c_int


def syscall(number: int, *arguments: object) -> int:
    """Raises OSError when the kernel answers an error. Plain ints are passed as 64-bit words."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def call(name: str, *arguments: object) -> int:
    """`syscall` by name."""
    here = architecture()
    if here is None:
        raise OSError(38, f"no system call table for {os.uname().machine}")
    return syscall(here.numbers[name], *arguments)


def prctl(option: int, argument: int = 0) -> None:
    """Raises OSError."""
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(argument), zero, zero, zero) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    """Raises OSError."""
    as_bytes = [None if text is None else text.encode() for text in (source, target, kind, data)]
    if _libc.mount(as_bytes[0], as_bytes[1], as_bytes[2], ctypes.c_ulong(flags), as_bytes[3]) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind or source} on {target}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Raises OSError."""
    call("unshare", flags)
