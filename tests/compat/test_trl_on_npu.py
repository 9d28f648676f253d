"""Settings of TRL's own path that fail late on an NPU are refused there, and still fail (else drop the refusal)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ascent import devices
from ascent.compat.trl_on_npu import refuse_on_npu
from ascent.errors import InputError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


def arguments(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(use_vllm=True, vllm_mode="colocate", use_transformers_continuous_batching=False, **given)


def test_refused_on_an_npu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    server = arguments()
    server.vllm_mode = "server"
    paged = arguments()
    paged.use_transformers_continuous_batching = True
    for kind in ("cpu", "cuda"):
        monkeypatch.setattr(devices, "kind", lambda kind=kind: kind)
        refuse_on_npu(server)
        refuse_on_npu(paged)
    monkeypatch.setattr(devices, "kind", lambda: "npu")
    refuse_on_npu(arguments())
    with pytest.raises(InputError, match=r"(?s)can send weights to a server from CUDA devices only.*colocate"):
        refuse_on_npu(server)
    with pytest.raises(InputError, match="sizes its cache by the host's memory"):
        refuse_on_npu(paged)


def test_trl_still_sends_weights_to_servers_from_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.generation import vllm_client

    client: Any = object.__new__(vllm_client.VLLMClient)
    client.group_port = 0
    monkeypatch.setattr(client, "get_server_info", lambda: {"weight_transfer_config": {}}, raising=False)
    monkeypatch.setattr(client, "get_world_size", lambda: 1, raising=False)
    monkeypatch.setattr(vllm_client, "get_ip", lambda: "127.0.0.1", raising=False)
    with pytest.raises(NotImplementedError, match="CUDA"):
        client.init_communicator("cpu")


def test_transformers_still_sizes_its_cache_without_knowing_npus() -> None:
    import inspect

    from transformers.generation.continuous_batching import requests

    assert "npu" not in inspect.getsource(requests.get_device_and_memory_breakdown)
