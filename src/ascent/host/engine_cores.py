"""Which cores NPU processes on this machine are bound to, so that other work can keep off them.

vllm-ascend binds each engine's process when it starts, on ARM machines and unless `enable_cpu_binding` is off
(`vllm_ascend/cpu_binding.py`, 0.23): of the cores that are an NPU's, in ascending order, the first two serve its
interrupts, the last but one its thread `acl_thread`, the last its `release_thread`, and all others the process and its
other threads. A colocated engine's process is the training's own, and what that starts later is bound with it.

The cores of every NPU may be all that the machine has. Then what is left for other work are those of the process
itself, of which it uses few; the threads that have one core each, and the interrupts, are never disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OWN_CORE = ("acl_thread", "release_thread")
_INTERRUPTS = 2  # cores before those of the process


@dataclass(frozen=True, slots=True)
class BoundEngine:
    """The cores of one bound process: `main` may be shared, `alone` not."""

    main: frozenset[int]
    alone: frozenset[int]


def cores_beside_engines(allowed: frozenset[int], proc: Path = Path("/proc")) -> frozenset[int]:
    """Of the `allowed` cores those for work that no engine should notice: cores that no engine has, or else those that
    it can share. All of them where no engine is bound. `proc` is the top of a test tree."""
    engines = list(bound_engines(allowed, proc))
    if not engines:
        return allowed
    alone = frozenset[int]().union(*(engine.alone for engine in engines))
    shared = frozenset[int]().union(*(engine.main for engine in engines))
    return (allowed - alone - shared) or (allowed & shared - alone) or allowed


def bound_engines(allowed: frozenset[int], proc: Path = Path("/proc")) -> Iterator[BoundEngine]:
    """Every visible process with a thread of an NPU's driver that has a core to itself."""
    order = sorted(allowed)
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        threads = _threads(process)
        single = [cores for name, cores in threads.values() if name.startswith(_OWN_CORE) and len(cores) == 1]
        _, main = threads.get(process.name, ("", frozenset()))
        if not single or not main or main >= allowed:
            continue
        first = sum(core < min(main) for core in order)  # the place of the process's first core
        interrupts = order[max(0, first - _INTERRUPTS) : first]
        yield BoundEngine(main, frozenset(interrupts).union(*single))


def _threads(process: Path) -> dict[str, tuple[str, frozenset[int]]]:
    """Thread -> its name and cores; what ends meanwhile is left out."""
    found = {}
    try:
        for task in (process / "task").iterdir():
            status = (task / "status").read_text(encoding="utf-8", errors="replace")
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            if "Cpus_allowed_list" in fields:
                found[task.name] = fields.get("Name", ""), expand(fields["Cpus_allowed_list"])
    except OSError:  # it has ended, or is another user's
        return {}
    return found


def expand(cores: str) -> frozenset[int]:
    """`0-2,5` as the kernel writes it."""
    found: set[int] = set()
    for part in filter(None, cores.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
