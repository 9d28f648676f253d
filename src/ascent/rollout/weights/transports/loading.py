"""The servers load one chunk at a time, all of them together; one that fails is left out, the others go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ascent.rollout.weights.control import ControlPlane, ServerCallError
from ascent.rollout.weights.transports.base import update_body


class Loading:
    """`failed`: what went wrong, by the server's url. Used by one thread."""

    def __init__(self, replicas: Sequence[ControlPlane], timeout: float) -> None:
        """`timeout`: seconds that a server has for one chunk."""
        self.failed: dict[str, Exception] = {}
        self._replicas, self._timeout = replicas, timeout
        self._pool = ThreadPoolExecutor(max(1, len(replicas)), thread_name_prefix="ascent-weights")
        self._running: dict[str, Future[Any]] = {}

    def start(self, infos: Mapping[str, Mapping[str, Any]]) -> None:
        """Wait for the chunk before, then load this one. `infos`: vLLM's `update_info`, by the server's url."""
        self.wait()
        for replica in self._replicas:
            if replica.url not in self.failed:
                body = update_body(infos[replica.url])
                call = self._pool.submit(replica.post, "/update_weights", body, timeout=self._timeout)
                self._running[replica.url] = call

    def wait(self) -> None:
        """Until no server loads any more."""
        for url, call in self._running.items():
            try:
                call.result()
            except ServerCallError as error:
                self.failed[url] = error
        self._running = {}

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True)
