"""Rules A3: CANN toolkit, kernels and NNAL."""

from __future__ import annotations

from collections.abc import Iterator

from ascent.environment import chips
from ascent.environment.checks.purpose import Purpose
from ascent.environment.finding import Finding
from ascent.environment.inventory import CannPart, Environment
from ascent.environment.rules import found
from ascent.environment.versions import same

_COMPILER_NEEDS = ("attrs", "decorator", "sympy", "cffi", "pyyaml", "psutil", "protobuf", "scipy", "absl-py")
_AGAIN = ("put the line into the service unit and the container's entry point as well",)
_KERNEL_NAMES = {"A2": ("910b",), "A3": ("910_93", "910c"), "310P": ("310p",)}


def toolkit(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A301, A302, A306: a toolkit is there, sourced, and the only one."""
    installed = [part for part in environment.cann if part.part == "toolkit"]
    if not installed:
        if environment.origin == "machine" and environment.accelerator == "npu":
            yield found("A301", "error", "no CANN toolkit is installed")
        return
    active = environment.part("toolkit") or installed[0]
    if environment.origin == "report":
        yield found("A301", "ok", f"CANN {active.version}", evidence=[active.path], sure=active.sure)
        return
    if active.sourced:
        yield found("A302", "ok", f"CANN {active.version} is installed and sourced", evidence=[active.path])
    else:
        yield found(
            "A302",
            "error",
            f"CANN {active.version} is installed in {active.path}, but not sourced",
            mend=[f"source {_set_env(active)}", *_AGAIN],
            evidence=[active.path],
        )
    versions = list(dict.fromkeys(part.version for part in installed))
    if len(versions) > 1:
        sourced = [part.version for part in installed if part.sourced]
        several = len(set(sourced)) > 1
        yield found(
            "A306",
            "warning" if several else "note",
            f"{len(versions)} toolkits: {', '.join(versions)}" + (" (more than one sourced)" if several else ""),
            evidence=[part.path for part in installed],
        )


def _set_env(part: CannPart) -> str:
    """The script to source: beside the versions where they lie in folders, else in the install itself."""
    for shared in ("/ascend-toolkit/", "/nnal/atb/"):
        if shared in part.path:
            return f"{part.path.partition(shared)[0]}{shared}set_env.sh"
    return f"{part.path.rstrip('/')}/set_env.sh"


def nnal(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A303, A304, A307, A309: NNAL is there, sourced, of the toolkit's version and of one ABI."""
    part, active = environment.part("nnal"), environment.part("toolkit")
    if environment.origin == "machine" and part is None and active is not None:
        yield found(
            "A303",
            "error",
            "NNAL (ATB) isn't installed beside CANN " + active.version,
            mend=[f"install Ascend-cann-nnal {active.version} and source nnal/atb/set_env.sh"],
        )
    if part is None:
        return
    if environment.origin == "machine":
        if part.sourced:
            yield found("A304", "ok", f"NNAL {part.version} is installed and sourced", evidence=[part.path])
        else:
            yield found(
                "A304",
                "error",
                f"NNAL {part.version} is installed, but not sourced",
                mend=[f"source {_set_env(part)}", *_AGAIN],
                evidence=[part.path],
            )
    if active is not None and not same(part.version, active.version):
        yield found("A307", "error", f"NNAL {part.version} with CANN {active.version}", sure=part.sure and active.sure)
    paths = environment.variables.get("LD_LIBRARY_PATH", "").split(":")
    flavours = [path for path in paths if "cxx_abi_" in path]
    if flavours and "cxx_abi_0" in flavours[0]:
        yield found("A309", "warning", "NNAL's libraries for the old C++ ABI come first", evidence=flavours[:2])


def kernels(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A305: compiled operators for this chip, of the toolkit's version."""
    active = environment.part("toolkit")
    installed = [part for part in environment.cann if part.part == "kernels"]
    wanted = {target for name in environment.chips if (target := chips.identify(name).build_target) in _KERNEL_NAMES}
    if active is None or (environment.origin == "report" and not installed):
        return
    for target in sorted(wanted):
        names = _KERNEL_NAMES[target]
        fitting = [part for part in installed if any(part.chip.lower().startswith(name) for name in names)]
        if not fitting:
            there = ", ".join(sorted({part.chip for part in installed})) or "none"
            yield found(
                "A305",
                "error",
                f"no CANN kernels for {target} (installed: {there})",
                mend=[f"install Ascend-cann-kernels-{names[0]} {active.version}"],
            )
        elif not any(same(part.version, active.version) for part in fitting):
            yield found(
                "A305",
                "error",
                f"CANN kernels {fitting[0].version} with toolkit {active.version}",
                mend=[f"install Ascend-cann-kernels-{names[0]} {active.version}"],
            )
        else:
            yield found("A305", "ok", f"CANN kernels for {target} are installed")


def compiler_packages(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A308: what CANN's compiler imports."""
    if environment.origin != "machine" or not environment.cann or not environment.version("torch-npu"):
        return
    missing = [name for name in _COMPILER_NEEDS if name not in environment.packages]
    if missing:
        yield found(
            "A308",
            "warning",
            f"CANN's compiler lacks {', '.join(missing)}",
            mend=[f"pip install {' '.join(missing)}"],
        )


CHECKS = (toolkit, nnal, kernels, compiler_packages)
