"""The lines that join machines to one cluster, as text to paste: `ray start` for the head and the others, with every
variable that decides whether ranks, servers and judges work there, and why each is set.

Nothing is started here. The variables must be there when `ray start` is typed: what Ray starts later inherits them.
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from ascent.cluster import ports
from ascent.cluster.nodes import RESOURCES, Node
from ascent.errors import InputError

TOKENS_SINCE = Version("2.52")  # the first release of Ray that can ask for a token
OLDEST = Version("2.48")  # that Ascent is tested with
_OBJECT_STORE = 200_000_000  # bytes: Ray carries messages here, no tensors
_OPEN_FILES = 65536
# what ranks meet and talk through
_INTERFACES = {
    "npu": ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
    "cuda": ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
    "cpu": ("GLOO_SOCKET_IFNAME",),
}
_NOSET = {
    "npu": "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",
    "cuda": "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line to type, and why."""

    text: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """What is typed on one machine, or on each of several that are alike."""

    where: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """All of it, in the order in which it is typed. `open_ports`: what a firewall must let through between nodes."""

    blocks: tuple[Block, ...]
    open_ports: dict[str, str]
    notes: tuple[str, ...]

    @property
    def good(self) -> bool:
        """There is nothing to find here."""
        return True

    def to_text(self) -> str:
        """To paste: every word that isn't typed is a comment."""
        lines = [f"# note: {note}" for note in self.notes]
        for block in self.blocks:
            lines += ["", f"# ---- {block.where}"]
            for line in block.lines:
                lines += [f"# {line.why}"] * bool(line.why) + [line.text]
        lines += ["", "# between the machines these ports must be open:"]
        lines += [f"#   {what}: {which}" for what, which in self.open_ports.items()]
        return "\n".join(lines).strip()

    def to_json(self) -> dict[str, Any]:
        """For programs: schema `ascent.cluster-commands/1`."""
        return {"schema": "ascent.cluster-commands/1", **asdict(self)}


def commands(
    nodes: Sequence[Node], head: str, *, ray: str, interface: str | None = None, run_ports: str = "29400-29499"
) -> Commands:
    """The lines for a head at `head` (ADDRESS or ADDRESS:PORT), which is the first of `nodes`, and the others.

    `ray` is the release that the machines have. Raises InputError for an address that other machines can't reach, a
    release that is too old, and ports that meet.
    """
    address, port = head_address(head)
    release, listened = _release(ray), ports.port_range(run_ports)
    if port in listened:
        raise InputError(f"--head {head}: its port is one of the run's, {run_ports}", f"Take {ports.HEAD}.")
    tokens = release >= TOKENS_SINCE
    first, others = nodes[0], nodes[1:]
    at = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    blocks = [Block(f"on the head, {address}", (*_before(tokens, True), *_head(first, address, port, interface)))]
    for alike in sorted({(node.kind, node.devices, node.cpus) for node in others}):
        count = sum((node.kind, node.devices, node.cpus) == alike for node in others)
        node = next(node for node in others if (node.kind, node.devices, node.cpus) == alike)
        where = f"on each of {count} other machines" if count > 1 else "on the other machine"
        lines = (*_before(tokens, False), *_worker(node, at, address, interface))
        blocks.append(Block(f"{where}: {node.has}", lines))
    blocks.append(Block("then, on the head", tuple(_then(at, tokens))))
    blocks.append(Block("to take it apart, on each machine", (Line("ray stop"),)))
    kinds = {node.kind for node in nodes}
    return Commands(tuple(blocks), _open(port, listened, kinds), tuple(_notes(tokens, release, kinds)))


def installed() -> str:
    """The release of Ray that is installed here. Raises InputError where there is none."""
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            "Ray isn't installed here, so its release isn't known", "Say which the machines have: --ray 2.60"
        ) from error


def head_address(head: str) -> tuple[str, int]:
    """The IP address and port of `ADDRESS[:PORT]`. Raises InputError for what isn't one, or isn't to be reached."""
    found = re.fullmatch(r"\[([0-9a-fA-F:]+)\](?::(\d{1,5}))?|([0-9.]+)(?::(\d{1,5}))?", head.strip())
    text = head if found is None else found[1] or found[3]
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise InputError(
            f"--head {head}: expected the head's IP address, as the other machines reach it (10.0.0.1, 10.0.0.1:6379)"
        ) from error
    if address.is_loopback or address.is_unspecified:
        raise InputError(f"--head {head}: other machines can't reach {address}", "Give the address of its network.")
    port = int((found[2] or found[4] or ports.HEAD) if found else ports.HEAD)
    if not 1024 <= port <= 65535 or port in ports.taken():
        raise InputError(
            f"--head {head}: expected a port from 1024 to 65535 that is nobody else's, such as {ports.HEAD}"
        )
    return str(address), port


def _release(given: str) -> Version:
    try:
        release = Version(given)
    except InvalidVersion as error:
        raise InputError(f"--ray {given}: expected a release of Ray, such as 2.48 or 2.60") from error
    if release < OLDEST:
        raise InputError(f"--ray {given}: expected {OLDEST} or later", "Install a later one on all machines.")
    return release


def _before(tokens: bool, on_head: bool) -> Iterator[Line]:
    """The shared secret, before anything is started."""
    if not tokens:
        return
    yield Line("export RAY_AUTH_MODE=token", "without it whoever reaches the ports runs programs here")
    if on_head:
        yield Line("ray get-auth-token --generate > /dev/null", "makes ~/.ray/auth_token, where there is none")
    else:
        yield Line(
            "test -s ~/.ray/auth_token || echo 'copy ~/.ray/auth_token here from the head first'",
            "the same on all machines; its owner alone should be able to read it",
        )


def _head(node: Node, address: str, port: int, interface: str | None) -> Iterator[Line]:
    yield _interface(interface, f"ip -o addr show to {address} | awk '{{print $2; exit}}'")
    yield from _variables(node)
    yield Line(
        "export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=3000 RAY_health_check_failure_threshold=4",
        "a node that doesn't answer is known within 15 s instead of a minute",
    )
    words = ["--head", f"--node-ip-address={address}", f"--port={port}", "--include-dashboard=false"]
    yield _ray_start([*words, "--disable-usage-stats", *_options(node)])


def _worker(node: Node, at: str, address: str, interface: str | None) -> Iterator[Line]:
    yield _interface(interface, f"ip route get {address} | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p'")
    yield from _variables(node)
    yield _ray_start([f"--address={at}", *_options(node)])


def _interface(given: str | None, found: str) -> Line:
    if given is not None and not re.fullmatch(r"[\w.:@-]{1,15}", given):
        raise InputError(f"--interface {given}: expected the name of a network interface, such as eth0 (ip -br addr)")
    why = "between the machines; a library that guesses may take loopback's, and ranks wait for each other for ever"
    return Line(f"INTERFACE={given or f'$({found})'}", why)


def _variables(node: Node) -> Iterator[Line]:
    yield Line("export " + " ".join(f'{name}="$INTERFACE"' for name in _INTERFACES[node.kind]))
    yield Line(f"ulimit -n {_OPEN_FILES}", "every rank, server and judge has its sockets and files")
    if node.kind == "npu":
        yield Line(
            f"export HCCL_HOST_SOCKET_PORT_RANGE={ports.shown(ports.HCCL_HOST)} "
            f"HCCL_NPU_SOCKET_PORT_RANGE={ports.shown(ports.HCCL_CARD)}",
            "several processes of a machine, or of a card, each listen at their own; CANN forbids both on A2 where "
            "communication is fused into operators (MC²): leave them out there",
        )
    if node.kind in _NOSET:
        yield Line(f"export {_NOSET[node.kind]}=1", "Ascent shows each process its devices; Ray would hide them all")
    yield Line("export RAY_worker_niceness=0", "Ray starts everything at nice 15 otherwise")
    yield Line("export RAY_memory_monitor_refresh_ms=0", "Ray would end a node's agent where memory is nearly full")
    yield Line("export RAY_DEDUP_LOGS=0", "equal lines of several ranks are all shown")


def _ray_start(words: list[str]) -> Line:
    return Line(" \\\n  ".join(textwrap.wrap(f"ray start {shlex.join(words)}", 110, break_on_hyphens=False)))


def _options(node: Node) -> Iterator[str]:
    yield f"--node-manager-port={ports.NODE_MANAGER}"
    yield f"--object-manager-port={ports.OBJECT_MANAGER}"
    yield f"--dashboard-agent-grpc-port={ports.AGENT}"
    yield f"--dashboard-agent-listen-port={ports.AGENT_HTTP}"
    yield f"--runtime-env-agent-port={ports.RUNTIME_ENV_AGENT}"
    yield f"--metrics-export-port={ports.METRICS}"
    yield f"--min-worker-port={ports.WORKERS.start}"
    yield f"--max-worker-port={ports.WORKERS.stop - 1}"
    yield f"--object-store-memory={_OBJECT_STORE}"
    if node.kind == "npu":
        yield f"--resources={json.dumps({RESOURCES['npu']: node.devices}, separators=(',', ':'))}"
    if node.kind == "cuda":
        yield f"--num-gpus={node.devices}"


def _then(at: str, tokens: bool) -> Iterator[Line]:
    if tokens:
        yield Line("export RAY_AUTH_MODE=token")
    yield Line(f"ascent cluster check cluster.address={at}", "are the machines alike, and do they reach each other?")
    yield Line(f"ascent cluster plan config.yaml --devices N cluster.address={at}", "where everything would stand")
    yield Line(f"ascent train config.yaml --devices N cluster.address={at}")


def _open(port: int, listened: range, kinds: set[str]) -> dict[str, str]:
    found = {
        "Ray": f"{port}, {ports.NODE_MANAGER}-{ports.METRICS}, {ports.shown(ports.WORKERS)}",
        "the run (cluster.ports)": ports.shown(listened),
    }
    if "npu" in kinds:
        found["HCCL, hosts"] = ports.shown(ports.HCCL_HOST)
        found["HCCL, cards' own network"] = ports.shown(ports.HCCL_CARD)
    if "cuda" in kinds:
        found["NCCL"] = "those of net.ipv4.ip_local_port_range"
    found["Gloo"] = "those of net.ipv4.ip_local_port_range"
    return found


def _notes(tokens: bool, release: Version, kinds: set[str]) -> Iterator[str]:
    if not tokens:
        yield (
            f"Ray {release} has no token: whoever reaches its ports runs programs on these machines. Keep them in a "
            f"network of their own, or take Ray {TOKENS_SINCE} or later"
        )
    if "npu" in kinds:
        yield "type the lines inside the container (docs/ascend.md), with the same image on all machines"
