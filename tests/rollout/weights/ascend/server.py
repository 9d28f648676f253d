"""A stand-in server of vllm-ascend 0.23: its worker's manners (VA/worker/worker.py), without a language model.

    python -m tests.rollout.weights.ascend.server hccl     prints its port

An update that fails stays open until `/finish_weight_update`, as there.
"""

from __future__ import annotations

import json
import sys
import types
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch
from tests.rollout.weights.ascend.hccl_engine import HCCLWeightTransferEngine
from tests.rollout.weights.ascend.npu_ipc_engine import NPUIPCWeightTransferEngine

from ascent.rollout.in_vllm.worker_extension import AscentWorkerExtension

ENGINES: dict[str, Any] = {"hccl": HCCLWeightTransferEngine, "npu_ipc": NPUIPCWeightTransferEngine}


class Policy(torch.nn.Module):
    """Parameters under the names of a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 24, dtype=torch.bfloat16)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(24, 24, dtype=torch.bfloat16) for _ in range(4)])
        self.requires_grad_(False)

    def load_weights(self, weights: Any) -> set[str]:
        loaded = set()
        for name, tensor in weights:
            self.get_parameter(name).copy_(tensor)
            loaded.add(name)
        return loaded


class Worker(AscentWorkerExtension):
    """The part of NPUWorker that takes weights."""

    def __init__(self, backend: str) -> None:
        self.device = torch.device("cpu")
        self.model_config = types.SimpleNamespace(dtype=torch.bfloat16)
        self.model_runner = types.SimpleNamespace(model=Policy())
        self.engine = ENGINES[backend](None, types.SimpleNamespace(rank=0), self.model_runner.model)
        self._weight_update_active = False

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.engine.init_transfer_engine(self.engine.init_info_cls(**init_info))

    def start_weight_update(self) -> None:
        if self._weight_update_active:
            raise RuntimeError(
                "start_weight_update called while a weight update is already active. Call finish_weight_update first."
            )
        self._weight_update_active = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        if not self._weight_update_active:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        typed = self.engine.update_info_cls(**update_info)
        self.engine.receive_weights(typed, load_weights=self.model_runner.model.load_weights)

    def finish_weight_update(self) -> None:
        if not self._weight_update_active:
            raise RuntimeError("start_weight_update must be called before finish_weight_update.")
        self._weight_update_active = False


class Handler(BaseHTTPRequestHandler):
    worker: Worker

    def do_GET(self) -> None:
        self._reply(200, {"world_size": 1})

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            if self.path == "/start_weight_update" and not text:
                return self._reply(400, {"detail": "Invalid JSON format"})
            body = json.loads(text or b"{}")
            if self.path == "/reset_prefix_cache":
                return self._reply(200, None)
            if self.path == "/collective_rpc":
                return self._reply(200, {"results": [getattr(self.worker, body["method"])(*body["args"])]})
            arguments = [body[key] for key in ("init_info", "update_info") if key in body]
            getattr(self.worker, self.path[1:])(*arguments)
            self._reply(200, {"message": "done"})
        except Exception as error:  # noqa: BLE001  # a server answers, whatever happens
            self._reply(500, {"error": f"Call to collective_rpc method failed: Worker failed with error '{error}'"})

    def _reply(self, status: int, content: Any) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


if __name__ == "__main__":
    Handler.worker = Worker(sys.argv[1])
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
