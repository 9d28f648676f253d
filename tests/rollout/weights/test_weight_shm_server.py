"""Weights into a real vLLM server over HTTP and shared memory, as in a decoupled run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.engine import Canary, WeightMismatchError, WeightSyncError
from ascent.rollout.weights.control import ServerCallError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
SEQUENCES = tuple(tuple(range(10 + 20 * n, 22 + 20 * n)) for n in range(3))


class Trainer:
    """The trainer's side: a model that changes, and what it says about fixed sequences."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.walks = 0

    def train(self, seed: int, scale: float = 0.02) -> None:
        import torch

        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)

    def walk(self) -> Iterator[tuple[str, Any]]:
        yield from self.model.named_parameters()
        self.walks += 1

    def canary(self) -> Canary:
        import torch

        ids = torch.tensor(SEQUENCES)
        with torch.no_grad():
            scores = self.model(ids).logits[:, :-1].log_softmax(-1)
        logps = scores.gather(2, ids[:, 1:, None])[..., 0]
        return Canary(SEQUENCES, tuple(tuple(row) for row in logps.tolist()), "float32")


@pytest.fixture(scope="module")
def server(tiny_policy: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.rollout.weights.http_server import HttpServer

    log = tmp_path_factory.mktemp("server") / "log.txt"
    made = HttpServer.start(tiny_policy(tied=True), "float32", log)
    yield made
    made.close()


@pytest.fixture
def trainer(tiny_policy: Callable[..., Path]) -> Trainer:
    return Trainer(tiny_policy(tied=True))


def delivery(chunk_bytes: int = 1 << 17, **settings: Any) -> Any:
    from ascent.rollout.weights.delivery import WeightDelivery
    from ascent.rollout.weights.transports.shm import ShmTransport

    return WeightDelivery(ShmTransport("float32", chunk_bytes=chunk_bytes), "float32", **settings)


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("ascent-weights-*")}


class Broken:
    """A server of which one route does not answer."""

    def __init__(self, server: Any, route: str, url: str = "http://broken") -> None:
        self._server, self._route, self._url = server, route, url
        self.vllm_version = server.vllm_version
        self.called: list[str] = []

    @property
    def url(self) -> str:
        return self._url

    def post(self, route: str, body: Mapping[str, Any], *, timeout: float) -> Any:
        self.called.append(route)
        if route == self._route:
            raise ServerCallError(f"{route}: connection refused")
        if route == "/collective_rpc" and body["method"] == "ascent_begin_update":
            return {"results": [{"device": "cpu", "dtype": "float32", "incarnation": "1"}]}
        return {}

    def get(self, route: str, *, timeout: float) -> Any:
        raise ServerCallError(route)


def test_weights_arrive_and_are_right(server: Any, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.rollout.in_vllm.owned_segments import Segment
    from ascent.rollout.weights.transports import shm as shm_sender

    used: set[str] = set()

    class Noted(Segment):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            used.add(self.name)

    monkeypatch.setattr(shm_sender, "Segment", Noted)
    sender = delivery()
    for version in range(1, 5):
        trainer.train(version)
        report = sender.deliver([server], trainer.walk(), version, trainer.canary())
        assert report.failed == {}
        assert report.unseen == ()
        assert report.canary[server.url].mean < 1e-5
    assert trainer.walks == 4
    assert server.get("/weight_info", timeout=5)["weight_version"] == "4"
    assert len(used) == 8, "two for each delivery"
    assert not used & segments(), "shared memory was left behind"


def test_a_stale_canary_is_noticed(server: Any, trainer: Trainer) -> None:
    sender = delivery()
    sender.deliver([server], trainer.walk(), 1, trainer.canary())
    old = trainer.canary()
    trainer.train(7, scale=0.1)
    with pytest.raises(WeightMismatchError, match="log-probabilities of known sequences differ"):
        sender.deliver([server], trainer.walk(), 2, old)
    sender.deliver([server], trainer.walk(), 2, trainer.canary())


def test_one_dead_server_does_not_spoil_the_other(server: Any, trainer: Trainer) -> None:
    sender = delivery()
    for number, route in enumerate(
        ("/collective_rpc", "/start_weight_update", "/update_weights", "/finish_weight_update")
    ):
        trainer.train(number)
        report = sender.deliver([Broken(server, route), server], trainer.walk(), number, trainer.canary())
        assert set(report.failed) == {"http://broken"}
        assert "connection refused" in str(report.failed["http://broken"])
        assert report.canary[server.url].mean < 1e-5


def test_no_server_left_is_an_error_and_the_walk_still_ends(server: Any, trainer: Trainer) -> None:
    for route in ("/collective_rpc", "/start_weight_update", "/update_weights"):
        with pytest.raises(WeightSyncError, match=r"no server got the weights: http://broken: .*connection refused"):
            delivery().deliver([Broken(server, route)], trainer.walk(), 1)
    assert trainer.walks == 3


def test_hostile_descriptions_are_refused_and_the_server_stays(server: Any, trainer: Trainer) -> None:
    good = {"name": "model.norm.weight", "dtype": "float32", "shape": [64], "offset": 0}
    for segment, tensors, message in (
        ("../../etc/passwd", [good], "not the name of a segment"),
        ("ascent-weights-" + "0" * 32, [good], "can't be opened"),
    ):
        server.post("/start_weight_update", {}, timeout=30)
        with pytest.raises(ServerCallError, match=message):
            server.post("/update_weights", {"update_info": {"segment": segment, "tensors": tensors}}, timeout=30)
    delivery().deliver([server], trainer.walk(), 1, trainer.canary())


def test_an_update_that_was_given_up_does_not_stand_in_the_way(server: Any, trainer: Trainer) -> None:
    """As vllm-ascend 0.23 leaves it after an update that failed."""
    server.post("/start_weight_update", {}, timeout=30)
    trainer.train(3)
    report = delivery().deliver([server], trainer.walk(), 1, trainer.canary())
    assert report.failed == {}


def test_a_model_that_lacks_a_weight_is_named(server: Any, trainer: Trainer) -> None:
    some = [(name, tensor) for name, tensor in trainer.walk() if "layers.1.mlp.down" not in name]
    delivery().deliver([server], trainer.walk(), 1)
    with pytest.raises(WeightSyncError, match=r"layers\.1\.mlp\.down_proj"):
        delivery().deliver([server], some, 2)
    delivery().deliver([server], trainer.walk(), 3, trainer.canary())


def test_segments_of_a_trainer_that_was_killed_are_removed(server: Any, trainer: Trainer) -> None:
    code = (
        "import os, signal\n"
        "from ascent.rollout.in_vllm.owned_segments import Segment\n"
        "segment = Segment(1 << 16)\n"
        "print(segment.name, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1500, env=dict(os.environ)
    )
    stale = done.stdout.strip()
    assert stale in segments()
    delivery().deliver([server], trainer.walk(), 1)
    assert stale not in segments()
