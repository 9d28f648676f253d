"""Weights over HTTP: the real transport and the real receiving engine, in processes of their own; vLLM stood in for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.weights.receiver import Receiver

from ascent.rollout.in_vllm.fingerprints import fingerprint
from ascent.rollout.weights.transports.http import AHEAD, HttpTransport

pytestmark = pytest.mark.torch
CHUNK = 1 << 16
Weights = list[tuple[str, Any]]


def weights(count: int = 24, seed: int = 0) -> Weights:
    """Some tensors of 4 to 100 KB: eight chunks and more, one of them longer than a chunk."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    return [(f"w{n}", torch.randn(1000 + 1100 * (n % 23), generator=draw)) for n in range(count)]


def prints(sent: Weights, *, dtype: str = "float32") -> dict[str, str]:
    import torch

    return {name: fingerprint(name, tensor.to(getattr(torch, dtype))) for name, tensor in sent}


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("ascent-weights-*")}


def size_of(segment: str) -> int:
    try:
        return (Path("/dev/shm") / segment).stat().st_size
    except FileNotFoundError:  # renamed meanwhile
        return 0


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def start() -> Iterator[Callable[..., list[Receiver]]]:
    """start("127.0.0.1", ...) -> a receiver on each of these machines, as the trainer knows them."""
    receivers: list[Receiver] = []

    def begin(*hosts: str) -> list[Receiver]:
        receivers.extend(Receiver(host, len(receivers) + number) for number, host in enumerate(hosts))
        return receivers[-len(hosts) :]

    yield begin
    for receiver in receivers:
        receiver.close()


def send(receivers: list[Receiver], sent: Weights, *, dtype: str = "float32", **settings: Any) -> dict[str, Any]:
    transport = HttpTransport(dtype, **{"chunk_bytes": CHUNK, "timeout": 60.0, **settings})
    return dict(transport.send(receivers, iter(sent), lambda name, tensor: None))


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The accounts of the deliveries."""
    from ascent.rollout.weights.transports import http as sender
    from ascent.rollout.weights.transports.offers import Offers

    kept: list[Any] = []

    def keep(**settings: Any) -> Offers:
        kept.append(Offers(**settings))
        return kept[-1]

    monkeypatch.setattr(sender, "Offers", keep)
    return kept


def test_every_bit_arrives_and_nothing_is_left_behind(start: Any, offers: list[Any]) -> None:
    before = segments()
    receivers = start("127.0.0.1", "127.0.0.2")
    for seed, dtype in ((1, "float32"), (2, "bfloat16"), (3, "float32")):
        sent = weights(seed=seed)
        assert send(receivers, sent, dtype=dtype) == {}
        assert [each.loaded() for each in receivers] == [prints(sent, dtype=dtype)] * 2
    size = sum(tensor.numel() * 4 for _, tensor in sent)
    assert 2 * size <= offers[-1].bytes_sent < 2.1 * size, "once for each host"
    until(lambda: segments() <= before)
    for each in receivers:
        until(lambda each=each: each.threads() == 1)  # type: ignore[misc]


def test_workers_of_one_host_share_one_fetch(start: Any, offers: list[Any]) -> None:
    receivers = start(*["127.0.0.1"] * 3)
    sent = weights()
    assert send(receivers, sent) == {}
    assert [each.loaded() for each in receivers] == [prints(sent)] * 3
    assert offers[-1].bytes_sent < 1.1 * sum(tensor.numel() * 4 for _, tensor in sent)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_receiver_that_is_lost_in_the_middle_fails_alone(start: Any, number: int) -> None:
    lost, other = start("127.0.0.1", "127.0.0.2")
    sent = weights()

    def walk() -> Iterator[tuple[str, Any]]:
        for place, each in enumerate(sent):
            if place == 12:
                os.kill(lost.process.pid, number)
                threading.Timer(1.0, lost.process.kill).start()  # its call would be given up after `timeout`
            yield each

    failed = send([lost, other], walk())  # type: ignore[arg-type]
    assert set(failed) == {lost.url}
    assert other.loaded() == prints(sent)


def test_the_worker_that_fetches_for_its_host_is_lost_and_another_goes_on(start: Any) -> None:
    receivers = start(*["127.0.0.1"] * 3)
    sent = weights()
    killed: list[str] = []

    def walk() -> Iterator[tuple[str, Any]]:
        for place, each in enumerate(sent):
            if place == 12:
                first = next(each for each in receivers if each.threads() > 1)
                killed.append(first.url)
                first.process.kill()
            yield each

    failed = send(receivers, walk())  # type: ignore[arg-type]
    assert set(failed) == set(killed)
    assert [each.loaded() for each in receivers if each.url not in killed] == [prints(sent)] * 2


def test_the_worker_that_fetches_for_its_host_hangs_and_the_others_help_themselves(start: Any) -> None:
    receivers = start(*["127.0.0.1"] * 3)
    for each in receivers:
        each.post("told", {"patience": 0.5})
    sent = weights()
    stopped: list[str] = []

    def walk() -> Iterator[tuple[str, Any]]:
        for place, each in enumerate(sent):
            if place == 12:
                first = next(each for each in receivers if each.threads() > 1)
                stopped.append(first.url)
                os.kill(first.process.pid, signal.SIGSTOP)
                threading.Timer(3.0, first.process.kill).start()
            yield each

    failed = send(receivers, walk())  # type: ignore[arg-type]
    assert set(failed) == set(stopped)
    assert [each.loaded() for each in receivers if each.url not in stopped] == [prints(sent)] * 2


def test_a_worker_that_fails_while_loading_fails_alone(start: Any) -> None:
    receivers = start(*["127.0.0.1"] * 2, "127.0.0.2")
    for failing in receivers:
        sent = weights()
        failing.post("told", {"fail": "w11"})
        failed = send(receivers, sent)
        assert set(failed) == {failing.url}
        assert "w11 can't be loaded" in str(failed[failing.url])
        assert [each.loaded() for each in receivers if each is not failing] == [prints(sent)] * 2
        failing.post("told", {"fail": None})
        assert send(receivers, sent) == {}, "the next delivery reaches it again"
        assert [each.loaded() for each in receivers] == [prints(sent)] * 3


def test_from_four_hosts_on_they_give_chunks_to_each_other(start: Any, offers: list[Any]) -> None:
    before = segments()
    receivers = start(*[f"127.0.0.{n}" for n in range(1, 7)])
    for seed in range(2):
        sent = weights(seed=seed)
        assert send(receivers, sent) == {}
        assert [each.loaded() for each in receivers] == [prints(sent)] * 6
        size = sum(tensor.numel() * 4 for _, tensor in sent)
        assert offers[-1].bytes_sent < 5 * size, "six times without relays"
        assert len(offers[-1].relayed) >= 2
    until(lambda: segments() <= before)


def test_a_relay_that_is_lost_fails_alone(start: Any, offers: list[Any]) -> None:
    receivers = start(*[f"127.0.0.{n}" for n in range(1, 6)])
    sent = weights()

    def walk() -> Iterator[tuple[str, Any]]:
        for place, each in enumerate(sent):
            if place == 12:
                assert offers[-1].relayed
                receivers[2].process.kill()
            yield each

    failed = send(receivers, walk())  # type: ignore[arg-type]
    assert set(failed) == {receivers[2].url}
    for each in receivers:
        assert each is receivers[2] or each.loaded() == prints(sent)


def test_a_call_that_takes_too_long_leaves_its_server_out(start: Any) -> None:
    slow, other = start("127.0.0.1", "127.0.0.2")
    slow.post("told", {"seconds": 30.0})
    sent = weights()
    began = time.monotonic()
    failed = send([slow, other], sent, timeout=2.0)
    assert set(failed) == {slow.url}
    assert time.monotonic() - began < 8, "one chunk's time, not that of all chunks"
    assert other.loaded() == prints(sent)


def test_memory_is_a_few_chunks_at_both_ends(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.rollout.weights.transports import http as sender

    buffers: list[int] = []

    class Counted(sender._Buffer):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            buffers.append(size)

        def close(self) -> None:
            super().close()
            buffers.pop()

    monkeypatch.setattr(sender, "_Buffer", Counted)
    receivers = start("127.0.0.1", "127.0.0.1", "127.0.0.2")
    most = {"trainer": 0, "hosts": 0}
    before = segments()

    def walk() -> Iterator[tuple[str, Any]]:
        for name, tensor in weights(200):
            most["trainer"] = max(most["trainer"], sum(buffers))
            most["hosts"] = max(most["hosts"], sum(size_of(name) for name in segments() - before))
            yield name, tensor

    assert send(receivers, walk(), chunk_bytes=1 << 18) == {}  # type: ignore[arg-type]
    assert 0 < most["trainer"] <= AHEAD << 18
    assert 0 < most["hosts"] <= 2 * AHEAD << 18, "a few chunks for each of two hosts, however many workers there are"
    assert not buffers


def test_a_trainer_that_can_not_listen_says_so_and_the_walk_ends(start: Any) -> None:
    from ascent.rollout.engine import WeightSyncError

    walk = iter(weights())
    with pytest.raises(WeightSyncError, match=r"can't be given out to http://127.* over HTTP: .*assign requested addr"):
        send(start("127.0.0.1"), walk, address="192.0.2.1")  # type: ignore[arg-type]
    assert next(walk, None) is None


def test_a_server_whose_machine_is_not_known_any_more_fails_alone(start: Any) -> None:
    lost, other = start("no-such-machine.invalid", "127.0.0.1")
    sent = weights(8)
    failed = send([lost, other], sent)
    assert set(failed) == {lost.url}
    assert "no way to the server's machine" in str(failed[lost.url])
    assert other.loaded() == prints(sent)


def test_what_a_server_is_told_and_can_not_have_is_refused(start: Any) -> None:
    before = segments()
    (receiver,) = start("127.0.0.1")
    told = {
        "source": "127.0.0.1:9",
        "token": "t",
        "host": "h",
        "chunk_bytes": CHUNK,
        "ahead": 2,
        "relays": False,
        "chunk": 0,
    }
    told |= {"size": 64, "sha256": None, "tensors": [{"name": "w", "dtype": "float32", "shape": [16], "offset": 0}]}
    for changed, message in (
        ({}, "can't be reached from this server: .*Connection refused.*cluster.interface"),
        ({"source": "nowhere"}, "not an address of chunks: 'nowhere'"),
        ({"source": "http://127.0.0.1:9/x"}, "not an address of chunks"),
    ):
        with pytest.raises(Exception, match=message):
            receiver.post("/update_weights", {"update_info": told | changed})
    assert receiver.threads() == 1
    assert segments() <= before
