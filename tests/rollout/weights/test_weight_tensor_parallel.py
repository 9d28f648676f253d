"""Two workers share each layer: full tensors arrive at both, and what they compute is put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.weights.test_weight_shm_server import Trainer, delivery

from ascent.rollout.engine import WeightMismatchError

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def run(
    request: pytest.FixtureRequest, tiny_policy: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Trainer]]:
    from tests.rollout.weights.http_server import HttpServer

    folder = tiny_policy(tied=request.param)
    log = tmp_path_factory.mktemp("server") / "log.txt"
    two = ("--tensor-parallel-size", "2")
    server = HttpServer.start(folder, "float32", log, arguments=two, VLLM_CPU_OMP_THREADS_BIND="0|1")
    yield server, Trainer(folder)
    server.close()


def test_weights_arrive_at_both_workers(run: tuple[Any, Trainer]) -> None:
    server, trainer = run
    sender = delivery()
    for version in range(1, 6):
        trainer.train(version)
        report = sender.deliver([server], trainer.walk(), version, trainer.canary())
        assert report.failed == {}
        assert report.unseen == ()
        assert report.canary[server.url].mean < 1e-5


def test_expectation_of_other_weights_is_not_met(run: tuple[Any, Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the workers compute is compared with weights of which one differs, without its fingerprint's help."""
    from ascent.rollout.weights.verify.expectation import Expectation

    server, trainer = run
    for part in ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "embed_tokens"):
        whole = Expectation.observe

        def other(self: Any, name: str, tensor: Any, part: str = part, whole: Any = whole) -> None:
            whole(self, name, tensor)
            if part in name:
                changed = tensor.clone()
                changed[: len(changed) // 4] *= 1.01
                kept = self._fingerprints[name]
                nbytes = self.nbytes
                whole(self, name, changed)
                self._fingerprints[name], self.nbytes = kept, nbytes

        with monkeypatch.context() as patch:
            patch.setattr(Expectation, "observe", other)
            with pytest.raises(WeightMismatchError, match=f"{part}.*is not what layer") as raised:
                delivery().deliver([server], trainer.walk(), 1)
        assert all(part in name for name in raised.value.parameters)
    delivery().deliver([server], trainer.walk(), 2, trainer.canary())
