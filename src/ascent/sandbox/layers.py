"""What confinement a machine gives, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.sandbox.types import Level

LAYERS = ("limits", "user", "namespaces", "landlock", "seccomp")
_NEEDED: dict[Level, tuple[str, ...]] = {
    "none": (),
    "syscall-only": ("limits", "user", "seccomp"),
    "confined": ("limits", "landlock", "seccomp"),
    "namespaced": ("limits", "landlock", "seccomp", "namespaces"),
}
_MENDS = {
    "limits": "don't leave limits out",
    "user": "run the judge as root; only level syscall-only needs this layer",
    "namespaces": "run as root with CAP_SYS_ADMIN, or allow unprivileged user namespaces (sysctl "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0); a default Docker "
    "container has none",
    "landlock": "use Linux 5.13 or newer with Landlock enabled (CONFIG_SECURITY_LANDLOCK, and landlock among "
    "lsm=...); in a container, a runtime whose seccomp profile allows the three landlock_* calls",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
}


@dataclass(frozen=True, slots=True)
class LayerReport:
    """Which layers are active, why the others aren't, and the level that they amount to. `holes` are
    promises of the level that a probing program found broken: then the level is `none`."""

    level: Level
    active: Mapping[str, bool]
    reasons: Mapping[str, str]
    landlock_abi: int
    uid: int | None
    notes: tuple[str, ...]
    holes: tuple[str, ...]

    @classmethod
    def of(cls, report: Mapping[str, Any], level: Level, holes: Sequence[str]) -> LayerReport:
        """From a slot's own report."""
        notes = []
        if report["read_search"]:
            notes.append(
                "the interpreter lies in a folder that only root may enter: programs keep the capability to "
                "read past permissions (CAP_DAC_READ_SEARCH), behind Landlock's list of what may be read; an "
                "interpreter readable by all avoids that"
            )
        if report["active"]["landlock"] and report["landlock_abi"] < 6:
            notes.append(f"Landlock version {report['landlock_abi']}: seccomp alone holds signals and abstract sockets")
        return cls(
            level,
            report["active"],
            report["reasons"],
            report["landlock_abi"],
            report["uid"],
            tuple(notes),
            tuple(holes),
        )


def mend_of(layer: str) -> str:
    """What to do so that a layer becomes active."""
    return _MENDS[layer]


def mend(report: LayerReport, wanted: Level) -> str:
    """Why `wanted` can't be given, and what to enable."""
    lines = [f"level {wanted!r} was required, but this machine gives {report.level!r}:"]
    for layer in _NEEDED[wanted]:
        if not report.active[layer]:
            lines.append(f"  {layer}: {report.reasons[layer]}; {_MENDS[layer]}")
    lines += [f"  a probing program could do what this level denies: {hole}" for hole in report.holes]
    lines.append("  see `ascent sandbox check`, or lower what is required (sandbox.require)")
    return "\n".join(lines)
