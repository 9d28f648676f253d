"""What the installed vLLM takes: every payload and argument of `nccl` and `ipc` fits its own classes; no device.

The interface of vLLM 0.23 and vllm-ascend is checked in tests/environment/test_contracts.py.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import pickle
from typing import Any

import pytest

from ascent.rollout.weights.update_api import update_api

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


@pytest.fixture
def chunk() -> Any:
    import torch

    return [("a.weight", torch.ones(2, 3)), ("b.bias", torch.ones(4, dtype=torch.bfloat16))]


def api() -> Any:
    import vllm

    from ascent.rollout.weights.transports.nccl import NcclTransport

    return NcclTransport("bfloat16", "cuda:0")._api_for(update_api(vllm.__version__), 1 << 20)


def test_nccl_payloads_are_what_the_worker_parses(chunk: Any) -> None:
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

    info = NCCLWeightTransferInitInfo(**api().worker_info("127.0.0.1", 1234, 3, 5))
    assert (info.rank_offset, info.world_size, info.packed, info.packed_buffer_size_bytes) == (3, 5, True, 1 << 20)
    update = NCCLWeightTransferUpdateInfo(**api().update_info(chunk))
    assert update.names == ["a.weight", "b.bias"]
    assert update.dtype_names == ["float32", "bfloat16"]
    assert update.shapes == [[2, 3], [4]]


def test_nccl_is_opened_and_sent_to_with_arguments_that_exist(chunk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.weight_transfer import nccl_common, packed_tensor

    called: dict[str, Any] = {}

    def recorded(module: Any, name: str) -> None:
        signature = inspect.signature(getattr(module, name))

        def stand_in(*arguments: Any, **keywords: Any) -> str:
            called[name] = signature.bind(*arguments, **keywords).arguments
            return "group"

        monkeypatch.setattr(module, name, stand_in)

    recorded(nccl_common, "trainer_init")
    recorded(packed_tensor, "packed_nccl_broadcast_producer")
    assert api().open("127.0.0.1", 1234, 5) == "group"
    assert called["trainer_init"]["init_info"] == {"master_address": "127.0.0.1", "master_port": 1234, "world_size": 5}
    api().send("group", chunk)
    sent = called["packed_nccl_broadcast_producer"]
    assert [sent["post_iter_func"](item).shape for item in sent["iterator"]] == [(2, 3), (4,)]
    assert sent["buffer_size_bytes"] == 1 << 20


def test_ipc_sends_through_the_librarys_own_trainer(chunk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real trainer engine, with only the device's handles in another's place."""
    import torch
    import vllm

    from ascent.rollout.weights.transports import device_ipc, ipc

    ipc_engine: Any = importlib.import_module("vllm.distributed.weight_transfer.ipc_engine")

    def pretended(**arguments: Any) -> Any:
        names, tensors = zip(*arguments["iterator"], strict=True)
        yield type(
            "Chunk",
            (),
            {
                "ipc_handle": {"gpu-0": ("handle",)},
                "names": list(names),
                "dtype_names": ["float32", "bfloat16"],
                "shapes": [list(tensor.shape) for tensor in tensors],
                "tensor_sizes": [tensor.numel() * tensor.element_size() for tensor in tensors],
            },
        )

    signature = inspect.signature(ipc_engine.packed_ipc_producer)
    assert {"iterator", "gpu_uuid", "post_iter_func", "buffer_size_bytes"} <= set(signature.parameters)
    monkeypatch.setattr(ipc_engine, "packed_ipc_producer", pretended)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    properties = type("Properties", (), {"uuid": "gpu-0"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    sent: list[dict[str, Any]] = []
    ipc._send_stateful(chunk, 64, sent.append)
    assert update_api(vllm.__version__).stateful_trainer
    assert sent[0]["names"] == ["a.weight", "b.bias"]
    body = device_ipc._over_http(sent[0])
    assert pickle.loads(base64.b64decode(body["ipc_handles_pickled"])) == {"gpu-0": ("handle",)}  # noqa: S301
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    parsed = ipc_engine.IPCWeightTransferUpdateInfo(**body)
    assert parsed.ipc_handles == {"gpu-0": ("handle",)}
    assert parsed.tensor_sizes == [24, 8]
