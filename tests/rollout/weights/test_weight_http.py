"""Weights over HTTP: the real transport and the real receiving engine, in processes of their own; vLLM stood in for."""

from __future__ import annotations

import hashlib
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.in_vllm.fingerprints import fingerprint
from ascent.rollout.weights.transports.http import HttpTransport
from tests.rollout.weights.receiver import Receiver

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


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def made() -> Iterator[list[Receiver]]:
    receivers: list[Receiver] = []
    yield receivers
    for receiver in receivers:
        receiver.close()


@pytest.fixture
def start(made: list[Receiver]) -> Callable[..., list[Receiver]]:
    def begin(*hosts: str) -> list[Receiver]:
        made.extend(Receiver(host, len(made) + number) for number, host in enumerate(hosts))
        return made[-len(hosts) :]

    return begin


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
    until(lambda: segments() == before)
    for each in receivers:
        until(lambda each=each: each.post("figures", {})["threads"] == 1)  # type: ignore[misc]


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
            if place == 16 and number == signal.SIGSTOP:  # its call would be given up after `timeout`
                threading.Timer(1.0, lost.process.kill).start()
            yield each

    failed = send([lost, other], walk())  # type: ignore[arg-type]
    assert set(failed) == {lost.url}
    assert other.loaded() == prints(sent)


def test_the_worker_that_fetches_for_its_host_is_lost_and_another_goes_on(start: Any) -> None:
    receivers = start(*["127.0.0.1"] * 3)
    sent = weights()
    killed: list[str] = []

    def fetcher() -> Any:
        return next(each for each in receivers if each.post("figures", {})["threads"] > 1)

    def walk() -> Iterator[tuple[str, Any]]:
        for place, each in enumerate(sent):
            if place == 12:
                first = fetcher()
                killed.append(first.url)
                first.process.kill()
            yield each

    failed = send(receivers, walk())  # type: ignore[arg-type]
    assert set(failed) == set(killed)
    assert [each.loaded() for each in receivers if each.url not in killed] == [prints(sent)] * 2


def test_the_worker_that_fetches_for_its_host_hangs_and_the_others_help_themselves(start: Any) -> None:
    """Its server is left out by the trainer, and its worker says nothing."""
    from ascent.rollout.in_vllm import host_chunks

    receivers = start(*["127.0.0.1"] * 2)
    sent = weights(8)
    assert send(receivers, sent) == {}
    receivers[0].post("told", {"seconds": 2 * host_chunks.PATIENCE_SECONDS + 5})


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
    until(lambda: segments() == before)


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
