"""What a service writes about itself: one folder per service, for its user alone. Standard library only.

$XDG_RUNTIME_DIR/ascent/serve/NAME/   or   ~/.cache/ascent/serve/NAME/
    service.json     who, what, where, in which state (`ascent.service/3`), replaced by rename
    token            what the servers read their token from
    settings.json    what the supervisor was told
    scale.json       another number of replicas, until the supervisor has taken it up (`scaling.py`)
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ascent.errors import InputError
from ascent.rollout.service.processes import start_ticks

KIND = "ascent.service/"
# Raised whenever a trainer of one version could not use a service of another: other names of what vLLM loads, other
# routes of the guard, other fields here. The guard's own status has its number too (`in_vllm/guard.py`).
SCHEMA = f"{KIND}3"
RECORD, TOKEN, SETTINGS = "service.json", "token", "settings.json"
_BEING_MADE_SECONDS = 60.0  # a folder without a record is that of a service that is just starting, or of a failed try
ReplicaPhase = Literal["starting", "ready", "restarting", "draining", "failed"]
ServicePhase = Literal["starting", "ready", "failed"]
ScalingPhase = Literal["running", "done", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """One server as its supervisor knows it. `pid` is None while there is no process."""

    url: str
    log: str
    state: ReplicaPhase = "starting"
    pid: int | None = None
    restarts: int = 0
    why: str = ""  # of the last restart or failure


@dataclass(frozen=True, slots=True)
class Scaling:
    """The last change of the number of replicas: who asked is known by `request`, `why` says why not."""

    request: str
    replicas: int
    state: ScalingPhase = "running"
    why: str = ""


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """One service. `pid` and `started` (clock ticks since boot) together name the supervisor's process.

    `devices` have the names that hold for every process of this machine; those of `settings` hold for the supervisor.
    """

    name: str
    pid: int
    started: int
    model: str
    max_model_len: int
    token: str
    transport: str | None
    settings: dict[str, Any]
    replicas: tuple[ReplicaRecord, ...]
    state: ServicePhase = "starting"
    why: str = ""
    devices: tuple[str, ...] = ()
    scaling: Scaling | None = None
    gateway: ReplicaRecord | None = None

    def alive(self) -> bool:
        """Whether the supervisor's process is still there."""
        return start_ticks(self.pid) == self.started

    def to_json(self) -> dict[str, Any]:
        """As `service.json` holds it."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """A service that another version of Ascent started: what is read of its record, to show and to stop it."""

    name: str
    pid: int
    started: int
    schema: str
    model: str
    urls: tuple[str, ...]

    def alive(self) -> bool:
        """Whether the supervisor's process is still there."""
        return start_ticks(self.pid) == self.started

    def in_words(self) -> str:
        """That it can't be used, and why."""
        return (
            f"service {self.name} was started by another version of Ascent (its record is {self.schema}, this version "
            f"needs {SCHEMA})"
        )

    def mend(self) -> str:
        """What to do about it."""
        stop = f"ascent serve --stop {self.name}"
        return f"Stop it and start it again with this version: {stop}; ascent serve {self.model} --name {self.name}"


def services_folder() -> Path:
    """The folder that holds one folder for each service of this user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "ascent" / "serve"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ascent" / "serve"


def name_for(text: str) -> str:
    """A fit name of a service that is like `text`: letters, digits, '-', '_' and '.'."""
    return "".join(letter if _fit(letter) else "-" for letter in text).lstrip(".") or "service"


def _fit(letter: str) -> bool:
    return letter.isascii() and (letter.isalnum() or letter in "-_.")


def claim(name: str) -> Path:
    """Make the folder of a new service. Raises InputError when the name is unfit or taken by a living service."""
    if not name or name != name_for(name):
        raise InputError(f"service name {name!r}: letters, digits, '-', '_' and '.' only")
    folder = services_folder() / name
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(2):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            found = read_any(folder)
            if found is not None and found.alive():
                raise InputError(
                    f"a service named {name} is running (process {found.pid})",
                    f"Give another --name, or stop it: ascent serve --stop {name}",
                ) from None
            if found is None and time.time() - folder.stat().st_mtime < _BEING_MADE_SECONDS:
                raise InputError(f"another service named {name} is just starting", "Give another --name.") from None
            shutil.rmtree(folder)
        else:
            return folder
    raise InputError(f"another service named {name} is just starting", "Give another --name.")


def write(folder: Path, record: ServiceRecord) -> None:
    """Replace `service.json`."""
    write_private(folder / RECORD, json.dumps(record.to_json(), indent=1) + "\n")


def read(folder: Path) -> ServiceRecord | None:
    """The record in a folder; None when there is none of this version that is whole. Raises OSError when it can't be
    read."""
    found = read_any(folder)
    return found if isinstance(found, ServiceRecord) else None


def read_any(folder: Path) -> ServiceRecord | OtherVersion | None:
    """The record in a folder, whichever version wrote it; None when there is none, or none that is whole. Raises
    OSError when it can't be read."""
    try:
        values = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        schema = values.pop("schema")
        if schema == SCHEMA:
            replicas = tuple(ReplicaRecord(**replica) for replica in values.pop("replicas"))
            devices = tuple(values.pop("devices", ()))
            scaling, gateway = values.pop("scaling", None), values.pop("gateway", None)
            return ServiceRecord(
                replicas=replicas,
                devices=devices,
                scaling=None if scaling is None else Scaling(**scaling),
                gateway=None if gateway is None else ReplicaRecord(**gateway),
                **values,
            )
        if not str(schema).startswith(KIND):
            return None
        urls = tuple(str(replica["url"]) for replica in values.get("replicas", ()))
        model = str(values.get("model", "MODEL"))
        return OtherVersion(folder.name, int(values["pid"]), int(values["started"]), schema, model, urls)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_all() -> Iterator[tuple[Path, ServiceRecord | OtherVersion | None]]:
    """Every service's folder and record, whichever version wrote it."""
    folder = services_folder()
    for each in sorted(folder.iterdir()) if folder.is_dir() else []:
        yield each, read_any(each)


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, by rename so that a kill leaves a whole file or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
