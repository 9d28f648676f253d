"""`servers.json`: where the servers of a training are that its launcher places, replaced whenever one moves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ascent.errors import InputError
from ascent.rollout.service import record

SERVERS = "servers.json"
SCHEMA = "ascent.servers/1"
State = Literal["starting", "ready", "failed"]


def publish(where: Path, state: State, urls: Sequence[str], why: str = "") -> None:
    """Say how the servers are, and where. A server that is being placed anew keeps its old URL meanwhile."""
    where.mkdir(parents=True, exist_ok=True)
    content = {"schema": SCHEMA, "state": state, "urls": list(urls), "why": why}
    record.write_private(where / SERVERS, json.dumps(content, indent=1) + "\n")


def read(file: Path) -> dict[str, Any]:
    """What a launcher has published: `state`, `urls` and `why`; `starting` where there is nothing whole."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {"state": "starting", "urls": [], "why": ""}
    if content.get("schema") != SCHEMA:
        raise InputError(f"{file} is {content.get('schema')}, this version of Ascent needs {SCHEMA}")
    return content
