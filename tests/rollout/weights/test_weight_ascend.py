"""`hccl` and `npu_ipc` against stand-in servers with vllm-ascend 0.23's exact interface, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.engine import WeightMismatchError, WeightSyncError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", autouse=True)
def stand_in() -> Iterator[None]:
    from tests.rollout.weights import ascend

    ascend.install()
    yield
    ascend.uninstall()


@contextmanager
def servers(backend: str, count: int, **variables: str) -> Iterator[list[Any]]:
    from tests.rollout.weights.http_server import HttpServer

    command = [sys.executable, "-m", "tests.rollout.weights.ascend.server", backend]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **variables}
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(count)
    ]
    try:
        made = []
        for process in processes:
            assert process.stdout is not None
            made.append(HttpServer(f"http://127.0.0.1:{process.stdout.readline().strip()}", "0.23.0.post1"))
            made[-1]._process = process
        yield made
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Any]]:
    with servers("hccl", 2) as made:
        yield made


def weights(seed: int) -> Iterator[tuple[str, Any]]:
    import torch
    from tests.rollout.weights.ascend.server import Policy

    torch.manual_seed(seed)
    for name, parameter in Policy().named_parameters():
        yield name, torch.randn(parameter.shape)  # float32: cast on the trainer's side


def delivery(backend: str, chunk_bytes: int = 3000, timeout: float = 60.0) -> Any:
    from ascent.rollout.weights.delivery import WeightDelivery
    from ascent.rollout.weights.transports.choice import transport

    made = transport(backend, "bfloat16", "cpu", chunk_bytes=chunk_bytes, timeout=timeout)
    return WeightDelivery(made, "bfloat16", timeout=timeout)


def test_hccl_reaches_all_servers(pair: list[Any]) -> None:
    sender = delivery("hccl")
    for version in range(3):
        report = sender.deliver(pair, weights(version), version)
        assert report.failed == {}
        assert report.unseen == ()
        assert report.nbytes == 2 * (50 * 24 + 4 * (24 * 24 + 24))
    sender.close()


def test_hccl_makes_a_new_group_for_other_servers(pair: list[Any]) -> None:
    sender = delivery("hccl")
    sender.deliver(pair, weights(1), 1)
    assert sender.deliver(pair[:1], weights(2), 2).failed == {}
    assert sender.deliver(pair, weights(3), 3).failed == {}


def test_hccl_a_server_that_fails_midway_is_an_error_for_all_and_the_next_update_works(pair: list[Any]) -> None:
    sender = delivery("hccl")
    sender.deliver(pair, weights(1), 1)
    walked = 0

    def unfit() -> Iterator[tuple[str, Any]]:
        nonlocal walked
        for name, tensor in weights(2):
            yield name.replace("layers.2", "layers.7"), tensor  # every server refuses this name
            walked += 1

    with pytest.raises(WeightSyncError, match=r"no server got the weights: .*no attribute `7`"):
        sender.deliver(pair, unfit(), 2)
    assert walked == 9, "the walk is collective: it ends whatever happens"
    report = sender.deliver(pair, weights(3), 3)  # the update that is still open there is closed first
    assert report.failed == {}


def test_hccl_a_library_that_is_missing_is_noticed(pair: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_WITHOUT_HCCL", "1")
    with pytest.raises(WeightSyncError, match=r"can't load libhccl\.so .*HCCL_SO_PATH.* so no weights would be sent"):
        delivery("hccl").deliver(pair, weights(1), 1)


def test_hccl_corruption_on_the_way_is_noticed(pair: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.rollout.weights.ascend.hccl_engine import HostCommunicator

    sender = delivery("hccl")
    sender.deliver(pair, weights(1), 1)
    whole = HostCommunicator.broadcast

    def corrupted(self: Any, tensor: Any, src: int, stream: Any = None) -> None:
        tensor[tensor.numel() // 2] ^= 4
        whole(self, tensor, src, stream)

    with monkeypatch.context() as patch:
        patch.setattr(HostCommunicator, "broadcast", corrupted)
        with pytest.raises(WeightMismatchError, match="arrived with other values") as raised:
            sender.deliver(pair, weights(2), 2)
    assert raised.value.parameters
    sender.deliver(pair, weights(2), 2)


def test_hccl_a_server_that_dies_midway_is_an_error_for_all_and_the_other_gets_the_next_update(pair: list[Any]) -> None:
    """The last test with these servers."""
    sender = delivery("hccl", timeout=40.0)  # the other may wait in the broadcast until that ends by itself
    sender.deliver(pair, weights(1), 1)
    first = sender._transport._group._communicator

    def deadly() -> Iterator[tuple[str, Any]]:
        for number, named in enumerate(weights(2)):
            yield named
            if number == 3:
                pair[1].process.kill()
                pair[1].process.wait()

    with pytest.raises(WeightSyncError, match=r"no server got the weights: .*lost a member, so nobody got all weights"):
        sender.deliver(pair, deadly(), 2)
    report = sender.deliver(pair, weights(3), 3)
    assert set(report.failed) == {pair[1].url}
    assert first.destroyed, "what the lost group held on the device is free again"


def test_npu_ipc_reaches_a_server_on_the_same_device() -> None:
    with servers("npu_ipc", 1, VLLM_ALLOW_INSECURE_SERIALIZATION="1") as made:
        sender = delivery("npu_ipc")
        for version in range(3):
            assert sender.deliver(made, weights(version), version).failed == {}


def test_npu_ipc_says_what_the_server_lacks() -> None:
    expected = pytest.raises(WeightSyncError, match="VLLM_ALLOW_INSECURE_SERIALIZATION=1")
    with servers("npu_ipc", 1, VLLM_ALLOW_INSECURE_SERIALIZATION="0") as made, expected:
        delivery("npu_ipc").deliver(made, weights(1), 1)
