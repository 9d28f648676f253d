"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket

_BELOW_THE_EPHEMERAL = range(20_000, 32_000)  # connections take theirs from 32768 on


def free_port() -> int:
    """A port on which nothing listens, and which no connection is given while a server that had it is started anew."""
    chosen = random.SystemRandom()
    while True:
        port = chosen.choice(_BELOW_THE_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
