"""The layers around a program: limits, user, namespaces, Landlock, seccomp. Set up once in a slot, entered
by each child."""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import time
from ctypes import c_char_p

from ascent.sandbox.inside import landlock, seccomp
from ascent.sandbox.inside.syscalls import call, mount, prctl, unshare

_CAP_DAC_READ_SEARCH = 2
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_MS_PRIVATE_RECURSIVE, _MS_NOSUID_NODEV = (1 << 18) | (1 << 14), 2 | 4
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_PR_SET_CHILD_SUBREAPER, _PR_CAP_AMBIENT = 36, 47
_STACK = 64 << 20
_RULESET_FD = 200
_AUTOGROUP_TRIES, _AUTOGROUP_PAUSE = 40, 0.05  # seconds
LAYERS = ("limits", "user", "namespaces", "landlock", "seccomp")
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Confinement:
    """What one slot can put around its children. `reasons` says of each layer that is off why it is off."""

    def __init__(self, config: Mapping[str, Any], namespaced: bool, namespace_reason: str) -> None:
        self.without = frozenset(config["without"])
        self.active: dict[str, bool] = {}
        self.reasons: dict[str, str] = {}
        self.scratch: str = config["scratch"]
        self.keeps_read_search = False
        self.read_only = False
        self.run_ruleset = -1  # a descriptor that children need until they entered it
        self._note("limits", "limits" not in self.without, "left out on request")
        self._note("namespaces", namespaced, namespace_reason)
        self.landlock_abi = landlock.abi()
        self._prepare_landlock(config)
        self._prepare_seccomp()
        self.uid: int | None = None
        self._prepare_user(config)

    def _note(self, layer: str, active: bool, reason: str) -> None:
        self.active[layer] = active
        if not active:
            self.reasons[layer] = reason

    def _prepare_landlock(self, config: Mapping[str, Any]) -> None:
        self._base_grants = [(path, landlock.READ_WRITE_FILE) for path in ("/dev/null", "/dev/zero")]
        self._base_grants += [(path, landlock.READ) for path in ("/dev/urandom", "/dev/random")]
        self._base_grants += [(self.scratch, landlock.SCRATCH)]
        if "landlock" in self.without:
            self._note("landlock", False, "left out on request")
            self.read_only = bool(config["read_only"])
            return
        try:
            low = landlock.ruleset([*self._base_grants, *((path, landlock.READ) for path in config["read"])])
        except OSError as error:
            self._note("landlock", False, f"the kernel refuses Landlock: {error.strerror}")
            self.read_only = True  # nothing else keeps a program from writing, so its filter must
            return
        self.run_ruleset = os.dup2(low, _RULESET_FD, inheritable=False)  # out of the way of a child's descriptors
        os.close(low)
        self._note("landlock", True, "")

    def _prepare_seccomp(self) -> None:
        if "seccomp" in self.without:
            self._note("seccomp", False, "left out on request")
            return
        try:
            self._filters = {kind: seccomp.Filter(kind, not self.read_only) for kind in ("run", "compile", "execute")}
        except OSError as error:
            self._note("seccomp", False, str(error.strerror))
            return
        self._note("seccomp", True, "")

    def _prepare_user(self, config: Mapping[str, Any]) -> None:
        uid = config["uid"]
        if "user" in self.without:
            self._note("user", False, "left out on request")
        elif os.geteuid() != 0 or uid is None:
            self._note("user", False, "not root: programs keep the user of the judge")
        elif not _can_become(uid):
            self._note("user", False, f"user id {uid} isn't mapped into this user namespace")
        else:
            private = [path for path in config["interpreter"] if not _readable_by(uid, path)]
            if private and not self.active["landlock"]:
                self._note("user", False, f"{private[0]} is readable by root only; make it readable by all")
                return
            # Reading past permissions is safe behind Landlock, which lists what may be read at all.
            self.keeps_read_search = bool(private)
            self.uid = uid
            self._note("user", True, "")

    @property
    def level(self) -> str:
        """What the active layers amount to: none, syscall-only, confined or namespaced."""
        if not (self.active["limits"] and self.active["seccomp"]):
            return "none"
        if not self.active["landlock"]:
            return "syscall-only" if self.read_only and self.uid is not None else "none"
        return "namespaced" if self.active["namespaces"] else "confined"

    @property
    def counts_threads(self) -> bool:
        """Whether the kernel's own limit on processes holds; otherwise the slot counts threads itself."""
        return self.active["limits"] and (self.uid is not None or (self.active["namespaces"] and os.getuid() != 0))

    def enter(self, profile: str, limits: Mapping[str, Any], parent: int) -> None:
        """In the child: put on every layer, for ever. Raises OSError."""
        if self.active["limits"]:
            self._set_limits(profile, limits)
        if "user" not in self.without:
            self._change_user(profile)
        prctl(_PR_SET_DUMPABLE, 1)  # /dev/stdin needs /proc/self/fd; there is nothing in this process to protect
        prctl(_PR_SET_PDEATHSIG, 9)
        if os.getppid() != parent:
            raise OSError(3, "the slot died")
        if self.active["landlock"] or self.active["seccomp"] or "user" not in self.without:
            seccomp.no_new_privileges()
        if self.active["landlock"]:
            self._restrict_files(profile, limits)
            os.close(self.run_ruleset)
        if self.active["seccomp"]:
            self._filters[profile].install(os.getpid())

    def seal(self) -> None:
        """In a process that only reads and writes its socket: the same walls, without the limits of a
        program."""
        if "user" not in self.without:
            self._change_user("run")
        die_with_parent(9)
        if self.active["landlock"] or self.active["seccomp"]:
            seccomp.no_new_privileges()
        if self.active["landlock"]:
            landlock.restrict(landlock.ruleset([]))
        if self.active["seccomp"]:
            self._filters["run"].install(os.getpid())

    def _restrict_files(self, profile: str, job: Mapping[str, Any]) -> None:
        if profile == "run":
            landlock.restrict(self.run_ruleset)
            return
        grants = [*self._base_grants, *((path, landlock.READ_EXECUTE) for path in job["executables"])]
        landlock.restrict(landlock.ruleset(grants))

    def _set_limits(self, profile: str, limits: Mapping[str, Any]) -> None:
        cpu = int(limits["cpu"]) + 1
        _limit(resource.RLIMIT_CPU, cpu, cpu + 1)
        _limit(resource.RLIMIT_AS, limits["memory"])
        _limit(resource.RLIMIT_FSIZE, limits["file"])
        _limit(resource.RLIMIT_NOFILE, limits["files"])
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_MEMLOCK, 0)
        _limit(resource.RLIMIT_STACK, _STACK)
        _limit(resource.RLIMIT_MSGQUEUE, 0)
        if self.counts_threads:
            _limit(resource.RLIMIT_NPROC, limits["processes"] + (16 if profile == "compile" else 0))

    def _change_user(self, profile: str) -> None:
        kept = 0
        if self.uid is not None:
            if self.keeps_read_search:
                prctl(_PR_SET_KEEPCAPS, 1)
                kept = 1 << _CAP_DAC_READ_SEARCH
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        inherited = kept if profile != "run" else 0
        header = struct.pack("=Ii", 0x20080522, 0)
        data = struct.pack("=6I", kept, kept, inherited, 0, 0, 0)
        call("capset", c_char_p(header), c_char_p(data))
        if inherited:  # an executed compiler must be able to read what the interpreter could
            call("prctl", _PR_CAP_AMBIENT, 2, _CAP_DAC_READ_SEARCH, 0, 0)


def _limit(which: int, soft: int, hard: int | None = None) -> None:
    hard = soft if hard is None else hard
    try:
        resource.setrlimit(which, (soft, hard))
    except ValueError:  # above a hard limit that this process was started with
        ceiling = resource.getrlimit(which)[1]
        resource.setrlimit(which, (min(soft, ceiling), min(hard, ceiling)))


def _can_become(uid: int) -> bool:
    with open("/proc/self/uid_map") as map_file:
        ranges = [tuple(map(int, line.split())) for line in map_file]
    return any(start <= uid < start + count for start, _, count in ranges)


def _readable_by(uid: int, path: str) -> bool:
    """Whether a stranger can walk to `path` and read it. By mode bits alone: access control lists only ever
    add."""
    parts = os.path.realpath(path).split("/")
    for depth in range(2, len(parts)):
        status = os.stat("/".join(parts[:depth]))
        if status.st_uid != uid and not status.st_mode & 0o001:
            return False
    return bool(os.stat(path).st_mode & 0o004)


def enter_namespaces() -> None:
    """Leave the machine's network, processes, IPC and mounts. The caller must fork: its child is process 1
    of the new namespaces and calls `furnish_namespaces`. Raises OSError."""
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    if os.geteuid() == 0:
        unshare(flags)
        return
    own, group = os.geteuid(), os.getegid()
    unshare(flags | _NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{own} {own} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def furnish_namespaces(scratch: str, scratch_bytes: int, uid: int | None) -> None:
    """In process 1: own mounts, a /proc of these processes only, and a small scratch in memory. Raises
    OSError."""
    mount("none", "/", None, _MS_PRIVATE_RECURSIVE, None)
    mount("proc", "/proc", "proc", _MS_NOSUID_NODEV, None)
    owner = "" if uid is None else f",uid={uid},gid={uid}"
    options = f"size={scratch_bytes},nr_inodes=4096,mode=700{owner}"
    mount("tmpfs", scratch, "tmpfs", _MS_NOSUID_NODEV, options)


def be_modest(nice: int, cores: list[int]) -> None:
    """Lower this process's priority and keep to these cores (none: to those that it has), for its children too."""
    os.nice(max(0, nice - os.nice(0)))
    if cores:
        os.sched_setaffinity(0, cores)


def lead_session(nice: int) -> None:
    """Begin a session, which programs stay in and may not leave, and lower its priority. Where the kernel shares the
    CPU out by session (autogroups), a process's own priority counts within its session only, and each session has one
    of its own, which begins at 0. Where that can't be written, programs have the share of a session at 0."""
    with contextlib.suppress(PermissionError):  # it leads a process group: the session is its own already
        os.setsid()
    for _ in range(_AUTOGROUP_TRIES if nice > 0 else 0):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(nice))
            return
        except BlockingIOError:  # the kernel takes ten a second of all users but root
            time.sleep(_AUTOGROUP_PAUSE)
        except OSError:  # a kernel without autogroups
            return


def protect_slot() -> None:
    """In the slot itself: not readable by processes of the same user."""
    prctl(_PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process, so that it can end them."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> None:
    """Ask for a signal when the thread that started this process ends."""
    prctl(_PR_SET_PDEATHSIG, signal_number)
