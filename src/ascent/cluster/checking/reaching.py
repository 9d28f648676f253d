"""Do neighbours reach each other at the ports of a run? One listens, the other connects and says a word."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from ascent.errors import InputError

_SECONDS = 10.0  # for a connection, and for the word to come back


class Listener:
    """Listens at a node's address until it is closed, and says what it is told back, at one of the ports."""

    def __init__(self, address: str, ports: range) -> None:
        """Raises InputError where none of the ports is free."""
        self._socket = _bound(address, ports)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection:
                connection.settimeout(_SECONDS)
                try:
                    connection.sendall(connection.recv(100))
                except OSError:
                    continue  # whoever asked has gone, and tells why

    def close(self) -> None:
        """Listen no longer."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which would keep the port
        self._socket.close()


def _bound(address: str, ports: range) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    fault: OSError | None = None
    for port in ports:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen()
        except OSError as error:
            fault = error
            listener.close()
        else:
            return listener
    raise InputError(
        f"none of the ports {ports.start}-{ports.stop - 1} is free at {address}: {fault}",
        "Give others with cluster.ports.",
    )


def reach(address: str, port: int, word: str) -> str:
    """Why a listener can't be reached, or doesn't say `word` back; empty where it does."""
    begun = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=_SECONDS) as connection:
            connection.settimeout(_SECONDS)
            connection.sendall(word.encode())
            back = connection.recv(100)
    except TimeoutError:
        return f"no answer at {address}:{port} within {time.monotonic() - begun:.0f} s"
    except OSError as error:
        return f"{address}:{port}: {error.strerror or error}"
    return "" if back == word.encode() else f"somebody else answers at {address}:{port}"
