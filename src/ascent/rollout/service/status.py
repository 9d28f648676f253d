"""`ascent serve --status`: every service of this user, with who holds it and which weights it has."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ascent.rollout.service import record
from ascent.rollout.service.server_process import Endpoint

_ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """One service. `guards` are what its servers say of themselves, None for one that doesn't answer. `removed`: its
    supervisor is gone, and what it left behind was removed."""

    record: record.ServiceRecord
    guards: tuple[dict[str, Any] | None, ...]
    removed: bool

    @property
    def good(self) -> bool:
        """Whether every server serves."""
        gateway = (self.record.gateway,) if self.record.gateway else ()
        return not self.removed and all(each.state == "ready" for each in (*self.record.replicas, *gateway))

    def to_json(self) -> dict[str, Any]:
        """The record without its secrets, and what the servers say."""
        values = {key: value for key, value in self.record.to_json().items() if key not in ("token", "schema")}
        values["replicas"] = [
            {**dataclasses.asdict(replica), "answer": guard}
            for replica, guard in zip(self.record.replicas, self.guards, strict=True)
        ]
        return {**values, "removed": self.removed}

    def to_text(self) -> str:
        """A few lines for people."""
        found = self.record
        state = "gone (removed from the list)" if self.removed else found.state
        lines = [f"{found.name}: {state}; {found.model}; process {found.pid}; weights by {found.transport or '-'}"]
        if found.why:
            lines.append(f"  {found.why}")
        if (gateway := found.gateway) is not None:
            why = f" ({gateway.why})" if gateway.why else ""
            lines.append(f"  gateway {gateway.url} {gateway.state}{why}; log: {gateway.log}")
        if (change := found.scaling) is not None and change.state != "done":
            why = f": {change.why}" if change.why else ""
            lines.append(f"  change to {change.replicas} replicas: {change.state}{why}")
        for replica, guard in zip(found.replicas, self.guards, strict=True):
            restarts = f", {replica.restarts} restarts (last: {replica.why})" if replica.restarts else ""
            lines.append(f"  {replica.url} {replica.state}{restarts}")
            lines += [f"    {_weights(guard)}; {_holder(guard)}"] if guard else []
            lines += [f"    adapter {each['name']}: {_weights(each)}; {_holder(each)}" for each in _adapters(guard)]
            lines.append(f"    log: {replica.log}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class OtherVersionReport:
    """A service that another version of Ascent started: it is shown, and can be stopped."""

    record: record.OtherVersion
    removed: bool

    @property
    def good(self) -> bool:
        """False: this version can't train with it."""
        return False

    def to_json(self) -> dict[str, Any]:
        """What was read of its record."""
        found = self.record
        values = {"name": found.name, "pid": found.pid, "model": found.model, "state": "other version"}
        replicas = [{"url": url} for url in found.urls]
        return {**values, "record_schema": found.schema, "replicas": replicas, "removed": self.removed}

    def to_text(self) -> str:
        """A few lines for people."""
        found = self.record
        if self.removed:
            return f"{found.name}: gone (removed from the list); {found.model}; of another version of Ascent"
        lines = [f"{found.name}: of another version; {found.model}; process {found.pid}"]
        lines += [f"  {found.in_words()}", f"  {found.mend()}", *(f"  {url}" for url in found.urls)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class StatusReport:
    """All services of this user."""

    services: tuple[ServiceReport | OtherVersionReport, ...]

    @property
    def good(self) -> bool:
        """Whether all services serve with all their servers."""
        return all(service.good for service in self.services)

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        return {"schema": "ascent.serve/1", "services": [service.to_json() for service in self.services]}

    def to_text(self) -> str:
        """For people."""
        return "\n".join(service.to_text() for service in self.services) or "no services"


def status() -> StatusReport:
    """Look at every service; what dead ones left behind is removed."""
    reports: list[ServiceReport | OtherVersionReport] = []
    for folder, found in record.read_all():
        if found is None:
            continue  # it is just being made, or was never finished
        alive = found.alive()
        if not alive:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(found, record.OtherVersion):
            reports.append(OtherVersionReport(found, removed=not alive))
            continue
        guards = tuple(_guard(replica, found.token) if alive else None for replica in found.replicas)
        reports.append(ServiceReport(found, guards, removed=not alive))
    return StatusReport(tuple(reports))


def _guard(replica: record.ReplicaRecord, token: str) -> dict[str, Any] | None:
    parts = urlsplit(replica.url)
    return Endpoint(parts.hostname or "", parts.port or 80, token).guard(_ANSWER_SECONDS)


def _adapters(guard: dict[str, Any] | None) -> list[dict[str, Any]]:
    return guard.get("adapters", []) if guard else []


def _weights(guard: dict[str, Any]) -> str:
    weights = guard["weights"]
    return {
        "none": "the checkpoint's weights",
        "updating": f"being given weights of version {weights['version']}",
        "ready": f"weights of version {weights['version']}",
    }[weights["state"]]


def _holder(guard: dict[str, Any]) -> str:
    holder = guard["holder"]
    if holder is None:
        return "free"
    return f"held by {holder['name']} (process {holder['pid']} on {holder['host']}, since {holder['since']})"
