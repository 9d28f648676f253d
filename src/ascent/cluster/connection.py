"""This process's connection to a Ray cluster that stands: refused in words where there is none, quiet where there is.

Ray keeps membership and places actors; nothing of a training passes through it but a few numbers and lines of logs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from ascent.cluster.nodes import RESOURCES, Node
from ascent.config.sections import ClusterSection
from ascent.errors import InputError

NAMESPACE = "ascent"
_REACHED_WITHIN = 5.0  # seconds for the head to take a connection
_CONNECTED_WITHIN = 40.0  # for Ray to take this process in; it takes one or two
_START = "Start one: ascent cluster commands prints what to type on each machine."


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process belongs to. `address`: HOST:PORT of its head."""

    address: str

    def nodes(self) -> list[Node]:
        """The nodes that are alive, with all that they have."""
        return [_node(each, each["Resources"]) for each in _ray().nodes() if each["Alive"]]

    def free(self) -> list[Node]:
        """The nodes that are alive, with what nobody has reserved of their cores and devices."""
        from ray._private.state import available_resources_per_node  # the same in 2.48 and 2.60; nothing public has it

        left: Mapping[str, Mapping[str, float]] = available_resources_per_node()
        alive = [each for each in _ray().nodes() if each["Alive"]]
        nodes = [(_node(each, each["Resources"]), left.get(each["NodeID"], {})) for each in alive]
        return [
            replace(
                node,
                cpus=int(free.get("CPU", 0)),
                devices=int(free.get(RESOURCES[node.kind], 0)) if node.devices else 0,
            )
            for node, free in nodes
        ]

    def head_answers(self) -> bool:
        """Whether the head takes connections."""
        return _takes_connections(self.address)


@contextlib.contextmanager
def connected(section: ClusterSection) -> Iterator[Cluster]:
    """Belong to the cluster at `section.address` inside the block.

    Raises InputError where Ray isn't installed, no cluster is there, it doesn't take this process (its token, its
    version, another machine), or the process belongs to one already.
    """
    ray = _ray()
    if section.address is None:
        raise InputError(
            "cluster.address is not set, so there is no cluster", "Give cluster.address=auto, or HOST:PORT of its head."
        )
    address = _found(section.address)
    if not _takes_connections(address):
        raise InputError(f"cluster.address={section.address}: nothing listens at {address}", _START)
    if ray.is_initialized():
        raise InputError("this process belongs to a Ray cluster already", "Leave it first: ray.shutdown()")
    _join(ray, address, section.address)
    try:
        yield Cluster(address)
    finally:
        ray.shutdown()


def installed() -> bool:
    """Whether Ray is."""
    from importlib.util import find_spec

    return find_spec("ray") is not None


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise InputError(
            f"a run over several machines needs Ray, which can't be imported: {error}",
            'Install it on every machine: pip install "ray>=2.48" (vllm-ascend\'s images have it).',
        ) from error
    module: ModuleType = ray
    return module


def _found(address: str) -> str:
    """HOST:PORT of the head. Raises InputError where none stands here, or the address isn't one."""
    if address == "auto":
        return _of_this_machine()
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"cluster.address={address}: expected auto, or HOST:PORT of the head, such as 10.0.0.1:6379")
    return address


def _of_this_machine() -> str:
    """The cluster that RAY_ADDRESS names, or of which a node runs on this machine."""
    from ray._private.services import find_gcs_addresses

    named = os.environ.get("RAY_ADDRESS", "")
    if named and named not in ("auto", "local"):
        return _found(named)
    addresses: set[str] = set(find_gcs_addresses())
    if not addresses:
        raise InputError("cluster.address=auto: no node of a Ray cluster runs on this machine", _START)
    if len(addresses) > 1:
        listed = ", ".join(sorted(addresses))
        raise InputError(f"cluster.address=auto: nodes of several clusters run here ({listed})", "Name one of them.")
    return addresses.pop()


def _takes_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED_WITHIN).close()
    except OSError:
        return False
    return True


def _join(ray: ModuleType, address: str, given: str) -> None:
    """`ray.init`, in words where it fails. What Ray's own libraries print meanwhile is read, not shown."""
    late = threading.Timer(_CONNECTED_WITHIN, _tell_late, (address, os.dup(2)))
    late.daemon = True
    late.start()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what 2.60 warns of, and later releases do
    with tempfile.TemporaryFile() as printed:
        try:
            with _printing_to(printed.fileno()):
                ray.init(
                    address=address,
                    namespace=NAMESPACE,
                    log_to_driver=False,  # the agents send what a run prints, whole and in order
                    logging_level=logging.ERROR,
                )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
            printed.seek(0)
            said = f"{error} {printed.read().decode(errors='replace')}"
            raise InputError(
                f"cluster.address={given}: Ray doesn't take this process in: {_told(error)}", _mend(said)
            ) from error
        finally:
            late.cancel()


@contextlib.contextmanager
def _printing_to(file: int) -> Iterator[None]:
    """Inside, what this process writes to standard error goes into a file, whichever library writes it."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def _tell_late(address: str, error_output: int) -> None:
    said = f"still waiting for Ray at {address}; is that the head's port (6379 unless told otherwise)?\n"
    os.write(error_output, said.encode())


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


def _mend(said: str) -> str:
    said = said.lower()
    if "token" in said or "unauthenticated" in said:
        return (
            "Give this process the cluster's token: RAY_AUTH_MODE=token, and the token in RAY_AUTH_TOKEN or in "
            "~/.ray/auth_token, as on every machine of the cluster."
        )
    if "version" in said:
        return "Take the same Python and the same Ray on every machine; ascent cluster check compares them."
    return "Run this on a machine of the cluster, where a node of it stands: ascent cluster commands prints how."


def _node(told: Mapping[str, Any], resources: Mapping[str, float]) -> Node:
    kinds = [kind for kind, name in RESOURCES.items() if resources.get(name, 0) >= 1]
    kind = kinds[0] if kinds else "cpu"
    return Node(
        id=told["NodeID"],
        address=told["NodeManagerAddress"],
        cpus=int(resources.get("CPU", 0)),
        devices=int(resources[RESOURCES[kind]]) if kinds else 0,
        kind=kind,
        name=told.get("NodeManagerHostname") or "",
    )
