"""One group of a trainer and its servers' workers: its communicator, and the thread that sends with it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, cast

from ascent import devices
from ascent.rollout.weights.transports.chunks import Chunk
from ascent.rollout.weights.transports.collective_api import CollectiveApi, check_usable

_log = logging.getLogger(__name__)
_ABORT_SECONDS = 6.0  # vLLM gives an abort five


class CollectiveGroup:
    """Collectives run in a thread of the group's own, with the device set.

    A collective whose members died may wait for ever, so nobody else ever waits for that thread: `abandon` leaves it
    behind. It is a daemon and can't keep the process from ending.
    """

    def __init__(self, api: CollectiveApi, device: str, library: str) -> None:
        self.api = api
        self._device, self._library = device, library
        self._communicator: Any = None
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ascent-collective", daemon=True)
        self._thread.start()

    def open(self, address: str, port: int, world_size: int) -> Future[Any]:
        """Join as rank 0. The future fails with WeightSyncError when the library can't be loaded."""

        def join() -> None:
            self._communicator = self.api.open(address, port, world_size)
            check_usable(self._communicator, self._library)

        return self._submit(self._on_device(join))

    def send(self, chunk: Chunk) -> Future[Any]:
        """Broadcast a chunk; workers must be receiving."""
        return self._submit(self._on_device(lambda: self.api.send(self._communicator, chunk)))

    def abandon(self) -> None:
        """Free the communicator, and end what still waits in it where the library can (`CollectiveApi.ends_waiting`).

        Where it can't, the group's thread frees the communicator after its collective has come to an end by itself, if
        it ever does. Takes seconds at most, whatever the collective does.
        """
        if self.api.ends_waiting and self._communicator is not None:
            wait([in_daemon_thread(self._destroy, "ascent-collective-abort")], timeout=_ABORT_SECONDS)
        else:
            self._submit(self._destroy)
        self._tasks.put(None)

    def _destroy(self) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is None or getattr(communicator, "disabled", False):
            return
        try:
            _set_device(self._device)
            self.api.destroy(communicator)
        except Exception as error:  # noqa: BLE001  # a library's own; there is nobody left who could mend it
            _log.warning("a group that was given up could not be freed: %s", error)

    def _on_device(self, task: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            _set_device(self._device)
            return task()

        return run

    def _submit(self, task: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    def _run(self) -> None:
        while (item := self._tasks.get()) is not None:
            task, future = item
            _settle(future, task)


def in_daemon_thread(task: Callable[[], Any], name: str) -> Future[Any]:
    """Run a task that may never end: an executor's threads would be waited for when the process ends."""
    future: Future[Any] = Future()
    threading.Thread(target=_settle, args=(future, task), name=name, daemon=True).start()
    return future


def _settle(future: Future[Any], task: Callable[[], Any]) -> None:
    try:
        future.set_result(task())
    except BaseException as error:  # noqa: BLE001  # it is the caller's, who asks the future
        future.set_exception(error)


def _set_device(device: str) -> None:
    """The communicators take the current device of their thread."""
    kind, _, index = device.partition(":")
    accelerator: Any = devices.module(cast(Any, kind))
    if accelerator is not None:
        accelerator.set_device(int(index or accelerator.current_device()))
