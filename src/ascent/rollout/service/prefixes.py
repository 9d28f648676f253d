"""Which server has seen the beginning of a prompt: its KV cache may still hold it. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

_BLOCK = 256  # bytes of a prompt that are compared at once
_LONGEST = 512  # blocks of a prompt that are looked at
_DIGEST_BYTES = 16


class PrefixMemory:
    """Remembers, for the beginnings of prompts, the server that was last given them; what was not used for longest is
    forgotten beyond `most` blocks (about 200 bytes each)."""

    def __init__(self, most: int = 65536) -> None:
        self._most = most
        self._servers: OrderedDict[bytes, str] = OrderedDict()

    def find(self, blocks: list[bytes], among: Collection[str]) -> str | None:
        """The server of the longest known beginning, of those that are asked about; None when there is none."""
        for block in reversed(blocks):
            if (server := self._servers.get(block)) in among and server is not None:
                return server
        return None

    def note(self, blocks: list[bytes], server: str) -> None:
        """A server was given a prompt."""
        for block in blocks:
            self._servers[block] = server
            self._servers.move_to_end(block)
        while len(self._servers) > self._most:
            self._servers.popitem(last=False)

    def __len__(self) -> int:
        return len(self._servers)


def blocks_of(request: Mapping[str, Any]) -> list[bytes]:
    """Digests of the beginnings of a request's prompt, one for each whole block: each is of all that comes before it
    and of the model, whose adapters share no KV cache. Knows `prompt` (text, or token ids), `messages` and `input`."""
    prompt = next((request[key] for key in ("prompt", "messages", "input") if request.get(key)), "")
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, separators=(",", ":"))
    content = text[: _LONGEST * _BLOCK].encode("utf-8", "surrogatepass")[: _LONGEST * _BLOCK]
    digest = hashlib.blake2b(str(request.get("model")).encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    blocks = []
    for start in range(0, len(content) - _BLOCK + 1, _BLOCK):
        digest.update(content[start : start + _BLOCK])
        blocks.append(digest.digest())
    return blocks
