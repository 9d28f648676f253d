"""Adapters as they come to a vLLM worker: their files, written piece by piece, and what the worker then holds of them.

vLLM loads an adapter from a folder, so its files are written where its own process can read them; that way nothing
needs to be shared between machines. Loaded inside vLLM's processes: the standard library and torch only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from ascent.rollout.in_vllm.fingerprints import fingerprint

_SETTINGS_VARIABLE = "ASCENT_REPLICA"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,160}\Z")
_FILES = ("adapter_config.json", "adapter_model.safetensors")


def folder_of(name: str) -> Path:
    """Where the files of the adapter `name` are. Raises ValueError for what can't be a name."""
    if _NAME.match(name) is None:
        raise ValueError(f"{name[:60]!r} can't be an adapter's name")
    return Path(json.loads(os.environ[_SETTINGS_VARIABLE])["adapter_folder"]) / name


def receive(piece: dict[str, Any]) -> dict[str, Any]:
    """Write one piece of a file: `name` (ADAPTER@VERSION), `file`, `offset`, `data` (base64). Files of other versions
    of the same adapter, which its holder has unloaded, go when the first piece comes."""
    folder, offset = folder_of(piece["name"]), int(piece["offset"])
    if piece["file"] not in _FILES:
        raise ValueError(f"{piece['file'][:60]!r} is no file of an adapter")
    data = base64.b64decode(piece["data"], validate=True)
    if not folder.exists():
        for other in folder.parent.glob(f"{piece['name'].partition('@')[0]}@*"):
            shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
    path = folder / piece["file"]
    with path.open("r+b" if offset else "wb") as file:
        if file.seek(0, os.SEEK_END) != offset:
            raise ValueError(f"{path.name}: piece at {offset}, but {path.stat().st_size} bytes are there")
        file.write(data)
    return {"size": offset + len(data)}


def digest(name: str) -> dict[str, str]:
    """SHA-256 of each file of an adapter."""
    return {file: hashlib.sha256((folder_of(name) / file).read_bytes()).hexdigest() for file in _FILES}


def tensor_key(tensor: Any) -> str:
    """What tells one of an adapter's tensors from others: its fingerprint, with shape and dtype, without a name."""
    return fingerprint("", tensor.cpu())


class Loaded:
    """Which of vLLM's adapters came from which folder: it numbers them, and tells nobody."""

    def __init__(self, manager: Any) -> None:
        """Stands before the loading of a worker's LoRA manager from now on."""
        self._manager, self._load = manager, manager._load_adapter
        self._numbers: dict[str, int] = {}  # by folder
        manager._load_adapter = self._loading

    def tensors(self, name: str) -> dict[str, int]:
        """The tensors of an adapter as the worker holds them: how many have each `tensor_key`; {}: it has none."""
        number = self._numbers.get(str(folder_of(name)))
        adapter = self._manager._adapter_manager.list_adapters().get(number)
        found: list[Any] = []
        for layer in [] if adapter is None else adapter.loras.values():
            for part in (layer.lora_a, layer.lora_b):
                found += [each for each in (part if isinstance(part, list) else [part]) if each is not None]
        return dict(Counter(tensor_key(tensor) for tensor in found))

    def drop(self, name: str) -> None:
        """Let go of an adapter that nobody samples with any more."""
        number = self._numbers.pop(str(folder_of(name)), None)
        if number is not None:
            self._manager.remove_adapter(number)

    def _loading(self, request: Any) -> Any:
        made = self._load(request)
        self._numbers[request.lora_path] = made.id
        return made
