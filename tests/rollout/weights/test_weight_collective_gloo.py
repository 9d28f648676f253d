"""A group that loses a member and is made anew, with gloo between processes in the place of HCCL and NCCL."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from ascent.rollout.in_vllm.guard import GIVE_UP
from ascent.rollout.weights.control import ServerCallError
from ascent.rollout.weights.transports.collective import CollectiveTransport

pytestmark = pytest.mark.torch
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["torch.distributed"])
SIZE = 1000


def joined(address: str, port: int, rank: int, world_size: int) -> Any:
    """A gloo group of its own, that isn't the process's."""
    import torch

    dist: Any = torch.distributed  # which doesn't export all of this by name
    store = dist.TCPStore(address, port, world_size, rank == 0, timeout=timedelta(seconds=20))
    return dist.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=20)), store


def broadcast(group: Any, tensor: Any) -> None:
    import torch.distributed as dist

    options = dist.BroadcastOptions()
    options.rootRank = 0
    group[0].broadcast([tensor], options).wait()


class GlooApi:
    """The trainer's half of such a group."""

    ends_waiting: ClassVar[bool] = False

    def worker_info(self, address: str, port: int, rank_offset: int, world_size: int) -> dict[str, Any]:
        return {"address": address, "port": port, "rank": rank_offset, "world_size": world_size}

    def update_info(self, chunk: Any) -> dict[str, Any]:
        return {"count": len(chunk)}

    def open(self, address: str, port: int, world_size: int) -> Any:
        return joined(address, port, 0, world_size)

    def send(self, group: Any, chunk: Any) -> None:
        for _, tensor in chunk:
            broadcast(group, tensor)

    def destroy(self, group: Any) -> None: ...


class GlooTransport(CollectiveTransport):
    backend, library = "gloo", "gloo"

    def _api_for(self, servers: Any, buffer_bytes: int) -> Any:
        return GlooApi()


class Worker:
    """A server's worker in a process of its own."""

    vllm_version = "0.23.0"

    def __init__(self, number: int) -> None:
        self.url = f"http://127.0.0.1:{number}"
        self._connection, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._one_caller = threading.Lock()

    def get(self, route: str, *, timeout: float) -> Any:
        return {"world_size": 1}

    def post(self, route: str, body: Mapping[str, Any], *, timeout: float) -> Any:
        if route == GIVE_UP:
            return None
        with self._one_caller:
            try:
                self._connection.send((route, dict(body)))
                answer = self._connection.recv()
            except (OSError, EOFError) as error:
                raise ServerCallError(f"{route}: the connection was closed") from error
        if isinstance(answer, str):
            raise ServerCallError(f"{route}: {answer}", 500)
        return answer

    def received(self) -> list[float]:
        return list(self.post("received", {}, timeout=20))


def work(connection: Any) -> None:
    """A worker's process."""
    import torch

    group: Any = None
    received: list[float] = []
    while True:
        try:
            route, body = connection.recv()
        except EOFError:
            return
        try:
            answer: Any = []
            if route == "/init_weight_transfer_engine":
                info = body["init_info"]
                group = joined(info["address"], info["port"], info["rank"], info["world_size"])
            elif route == "/update_weights":
                for _ in range(body["update_info"]["count"]):
                    tensor = torch.zeros(SIZE)
                    broadcast(group, tensor)
                    received.append(float(tensor.mean()))
            else:
                answer, received = received, []
        except RuntimeError as error:
            answer = f"{type(error).__name__}: {error}"
        connection.send(answer)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made = [Worker(number) for number in range(1, 4)]
    yield made
    for each in made:
        each.process.kill()
        each.process.join()


def walk(count: int = 4, before_last: Any = lambda: None) -> Iterator[tuple[str, Any]]:
    import torch

    for number in range(count):
        if number == count - 1:
            before_last()
        yield f"w{number}", torch.full((SIZE,), float(number))


def test_a_group_that_lost_a_member_is_made_anew_with_those_that_are_there(workers: list[Worker]) -> None:
    transport = GlooTransport("float32", "cpu", address="127.0.0.1", chunk_bytes=4 * SIZE, timeout=30.0)
    first, lost, spare = workers
    alive = {first.url: "1", lost.url: "1"}
    assert transport.connect([first, lost], alive) == {}
    assert transport.send([first, lost], walk(), lambda name, tensor: None) == {}
    assert first.received() == lost.received() == [0.0, 1.0, 2.0, 3.0]

    tensors = walk(before_last=lost.process.kill)
    failed = transport.send([first, lost], tensors, lambda name, tensor: None)
    assert set(failed) == {first.url, lost.url}, "nobody has all weights"
    assert "lost a member" in str(failed[first.url])
    assert next(tensors, None) is None, "the walk is collective"
    first.received()

    assert transport.connect([first, spare], {first.url: "1", spare.url: "1"}) == {}, "another server, elsewhere"
    assert transport.send([first, spare], walk(), lambda name, tensor: None) == {}
    assert first.received() == spare.received() == [0.0, 1.0, 2.0, 3.0]
    transport.close()
