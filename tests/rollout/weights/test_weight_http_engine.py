"""Weights over HTTP into a real engine: verified as with every transport, and wrong ones are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.weights.test_weight_shm_server import Trainer

from ascent.rollout.engine import WeightMismatchError, WeightSyncError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server(tiny_policy: Callable[..., Path]) -> Iterator[Any]:
    from tests.rollout.weights.in_process import InProcessServer

    from ascent.rollout.in_vllm.plugin import HTTP_BACKEND

    made = InProcessServer(tiny_policy(tied=True), "float32", backend=HTTP_BACKEND)
    yield made
    made.close()


@pytest.fixture
def trainer(tiny_policy: Callable[..., Path]) -> Trainer:
    return Trainer(tiny_policy(tied=True))


def delivery() -> Any:
    from ascent.rollout.weights.delivery import WeightDelivery
    from ascent.rollout.weights.transports.http import HttpTransport

    return WeightDelivery(HttpTransport("float32", chunk_bytes=1 << 16), "float32")


def test_weights_arrive_and_are_right(server: Any, trainer: Trainer) -> None:
    sender = delivery()
    for version in range(1, 4):
        trainer.train(version)
        report = sender.deliver([server], trainer.walk(), version, trainer.canary())
        assert report.failed == {}
        assert report.unseen == ()
        assert report.canary[server.url].mean < 1e-5
    assert server.calls.count("/update_weights") > 9, "several chunks each"


def test_a_bit_that_changes_on_the_way_is_noticed(
    server: Any, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between trainer and loader, where no digest is checked as long as no host relays."""
    from ascent.rollout.in_vllm import chunk_fetch

    whole = chunk_fetch._body

    def flipped(answer: Any, connection: Any, size: int, sha256: str | None, memory: Any) -> Any:
        found = whole(answer, connection, size, sha256, memory)
        memory(size)[size // 2] ^= 1
        return found

    with monkeypatch.context() as patch:
        patch.setattr(chunk_fetch, "_body", flipped)
        with pytest.raises(WeightMismatchError, match="arrived with other values"):
            delivery().deliver([server], trainer.walk(), 1)
    delivery().deliver([server], trainer.walk(), 1, trainer.canary())


def test_a_delivery_that_broke_off_leaves_nothing_behind(
    server: Any, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ascent.rollout.in_vllm.chunk_fetch import Fetcher, FetchError

    whole = Fetcher.fetch

    def breaks_off(fetcher: Any, number: int, memory: Any) -> Any:
        if number == 2:
            raise FetchError("the network is gone")
        return whole(fetcher, number, memory)

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "fetch", breaks_off)
        with pytest.raises(
            WeightSyncError, match=r"no server got the weights: in-process: .*chunk 2: the network is gone"
        ):
            delivery().deliver([server], trainer.walk(), 1)
    trainer.train(9)
    delivery().deliver([server], trainer.walk(), 2, trainer.canary())
