"""What happens on a node that is looked at: doctor's inspection, and what only matters among several machines."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLateError
from pathlib import Path

import ascent
from ascent import environment
from ascent.cluster.checking.node_report import NodeReport, Question
from ascent.cluster.nodes import Node
from ascent.environment import Environment, Finding
from ascent.environment.model_files import ModelError, locate
from ascent.models.digests import model_digest, tokenizer_and_sizes_digest
from ascent.sandbox import Sandbox, SandboxError

# set by Ray for its own workers, empty or not: our processes are told their devices by the agent
_OF_RAY = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
_NAME_SECONDS = 5.0  # a name server that is away answers later, or never


def look(node: Node, label: str, question: Question) -> NodeReport:
    """Everything about this machine, of which Ray knows `node`. Takes a second or two, with `whole_model` as long as
    reading the model takes."""
    seen = environment.inspect(variables={k: v for k, v in os.environ.items() if k not in _OF_RAY})
    model, model_error = _model(question)
    level, sandbox_error = _sandbox(question)
    return NodeReport(
        node=label,
        id=node.id,
        address=node.address,
        counted=node.devices,
        versions=versions(seen),
        findings=tuple(_doctor(seen)),
        devices=_devices(seen, node.kind),
        interfaces=_interfaces(),
        host_name=socket.gethostname(),
        host_addresses=_addresses_of(socket.gethostname()),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        model=model,
        model_error=model_error,
        sandbox=level,
        sandbox_error=sandbox_error,
    )


def versions(seen: Environment) -> dict[str, str]:
    """What may differ between machines, by its name; of Ascent also a digest of its files, which a release number may
    hide. What isn't there has no entry."""
    found = {
        "Python": seen.host.python,
        "Ascent": f"{ascent.__version__}, files {_own_digest()[:12]}",
        "CANN": seen.cann_version,
        "driver": seen.npu.driver or _cuda_driver(seen.gpus),
        "firmware": seen.firmware,
        "chip": "/".join(seen.chips),
        "architecture": platform.machine(),
        **{name: package.version for name, package in seen.packages.items()},
    }
    return {name: version for name, version in found.items() if version}


def _cuda_driver(gpus: tuple[str, ...]) -> str:
    """The last of the columns that `machine.inspect` asks nvidia-smi for."""
    return gpus[0].rpartition(",")[2].strip() if gpus else ""


def _own_digest() -> str:
    root = Path(ascent.__file__).parent
    hashed = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        hashed.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return hashed.hexdigest()


def _doctor(seen: Environment) -> list[Finding]:
    return [finding for finding in environment.run(seen) if finding.level != "ok"]


def _devices(seen: Environment, kind: str) -> int | None:
    """How many the driver shows; of a software NPU there is no driver."""
    if kind == "cuda" and seen.gpus:
        return len(seen.gpus)
    return len(seen.npu.devices) if kind == "npu" and seen.npu.state == "read" else None


def _interfaces() -> dict[str, tuple[str, ...]]:
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: tuple(each.address.partition("%")[0] for each in addresses if each.family in families)
        for name, addresses in psutil.net_if_addrs().items()
    }


def _addresses_of(name: str) -> tuple[str, ...]:
    """What the name stands for; nothing where nobody answers in time."""
    pool = ThreadPoolExecutor(1)
    try:
        found = pool.submit(socket.getaddrinfo, name, None).result(_NAME_SECONDS)
    except (OSError, TooLateError):
        return ()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _model(question: Question) -> tuple[str, str]:
    """Digest and error."""
    if question.model is None:
        return "", ""
    try:
        folder = locate(question.model)
        return (model_digest if question.whole_model else tokenizer_and_sizes_digest)(folder), ""
    except (ModelError, OSError) as error:
        return "", str(error)


def _sandbox(question: Question) -> tuple[str, str]:
    """Level and error."""
    if question.sandbox is None:
        return "", ""
    try:
        with Sandbox(slots=1, **question.sandbox) as sandbox:
            return sandbox.level, ""
    except SandboxError as error:
        return "", str(error)
