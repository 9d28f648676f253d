"""Servers that the launcher of a training places, on other machines too: asked for, found and followed by files.

Only a training knows what its servers must be like (how long its prompts are, for one), and only its launcher may start
something elsewhere. So the training writes `wanted.json` into a folder that both see, the launcher answers in
`servers.json` and keeps that true: where a server is placed anew, its URL there changes. The token is in neither.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ascent.errors import InputError
from ascent.rollout.service import record, servers_file
from ascent.rollout.service.address import ServiceAddress
from ascent.rollout.service.servers_file import SERVERS
from ascent.rollout.service.settings import ServiceSettings, from_json

VARIABLE = "ASCENT_PLACED_SERVERS"  # the folder, in a training whose launcher places servers
_WANTED = "wanted.json"
_LOOK = 0.3  # seconds


def folder() -> Path | None:
    """Where this process's launcher is asked for servers; None where it places none."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def ask(where: Path, settings: ServiceSettings, name: str) -> ServiceAddress:
    """Ask the launcher for these servers, and wait until they serve. Raises InputError when they don't start."""
    where.mkdir(parents=True, exist_ok=True)
    record.write_private(where / _WANTED, json.dumps(settings.to_json()))
    while (state := servers_file.read(where / SERVERS))["state"] == "starting":
        time.sleep(_LOOK)
    if state["state"] == "failed":
        raise InputError(f"the sampling servers did not start: {state['why']}", f"Their logs are in {where}.")
    token = os.environ.get("ASCENT_API_KEY", "")
    return ServiceAddress(
        name,
        tuple(state["urls"]),
        token,
        model=settings.engine.model,
        transport=settings.transport,
        dtype=settings.engine.dtype,
        servers=where / SERVERS,
    )


def wanted(where: Path) -> ServiceSettings | None:
    """What a training has asked for; None for nothing so far."""
    try:
        return from_json(json.loads((where / _WANTED).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget(where: Path) -> None:
    """Remove what was asked for, and answered, before."""
    for name in (_WANTED, SERVERS):
        (where / name).unlink(missing_ok=True)
