"""A server's worker that receives weights over HTTP, in a process of its own: the real receiving engine over a model that
only takes fingerprints. vLLM, which takes ten seconds to load, is stood in for.

    python receiver.py        commands in, answers out, a JSON line each
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class Receiver:
    """A ControlPlane over such a process. `host` is by what name the trainer knows its machine."""

    vllm_version = "0.31.0"

    def __init__(self, host: str = "127.0.0.1", number: int = 0) -> None:
        self.url = f"http://{host}:{number + 1}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        command = [sys.executable, str(Path(__file__).resolve())]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._one_caller = threading.Lock()

    def post(self, route: str, body: Mapping[str, Any], *, timeout: float = 60.0) -> Any:
        from ascent.rollout.weights.control import ServerCallError

        assert self.process.stdin is not None and self.process.stdout is not None
        with self._one_caller:
            try:
                self.process.stdin.write(json.dumps([route, body]) + "\n")
                self.process.stdin.flush()
                answer = self.process.stdout.readline()
            except OSError as error:
                raise ServerCallError(f"{route}: {error}") from error
        if not answer:
            raise ServerCallError(f"{route}: the connection was closed")
        decoded = json.loads(answer)
        if "error" in decoded:
            raise ServerCallError(f"{route}: {decoded['error']}", 500)
        return decoded["result"]

    def get(self, route: str, *, timeout: float = 60.0) -> Any:
        return self.post(route, {})

    def loaded(self) -> dict[str, str]:
        """Fingerprints of all that came in since this was asked last, by name."""
        found: dict[str, str] = self.post("loaded", {})
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _stand_in_for_vllm() -> None:
    class WeightTransferEngine:
        def __class_getitem__(cls, item: Any) -> Any:
            return cls

    base: Any = types.ModuleType("vllm.distributed.weight_transfer.base")
    base.WeightTransferEngine = WeightTransferEngine
    base.WeightTransferInitInfo = base.WeightTransferUpdateInfo = object
    reload: Any = types.ModuleType("vllm.model_executor.model_loader.reload.layerwise")
    reload.get_layerwise_info = lambda layer: types.SimpleNamespace(loaded_weights=[])
    for module in (base, reload):
        sys.modules[module.__name__] = module
        parts = module.__name__.split(".")
        for length in range(1, len(parts)):
            sys.modules.setdefault(".".join(parts[:length]), types.ModuleType(".".join(parts[:length])))


def _serve() -> None:
    """Answer until standard input ends."""
    _stand_in_for_vllm()
    import torch

    from ascent.rollout.in_vllm.fingerprints import fingerprint
    from ascent.rollout.in_vllm.http_receiver import HttpUpdateInfo, HttpWeightTransferEngine

    told: dict[str, Any] = {"seconds": 0.0, "fail": None, "plain": False}
    loaded: dict[str, str] = {}
    arrived = 0

    class Model(torch.nn.Module):
        def load_weights(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
            nonlocal arrived
            time.sleep(told["seconds"])
            if told["fail"] in dict(tensors):
                raise RuntimeError(f"{told['fail']} can't be loaded")
            arrived += sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
            if not told["plain"]:
                loaded.update({name: fingerprint(name, tensor) for name, tensor in tensors})

    engine: Any = HttpWeightTransferEngine.__new__(HttpWeightTransferEngine)
    engine.model = Model()

    def answer(route: str, body: dict[str, Any]) -> Any:
        if route == "/update_weights":
            return engine.receive_weights(HttpUpdateInfo(**body["update_info"]))
        if route == "told":
            return told.update(body)
        if route == "loaded":
            found = dict(loaded)
            loaded.clear()
            return found
        if route == "figures":
            files = len(os.listdir("/proc/self/fd"))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            return {"files": files, "threads": threading.active_count(), "peak_bytes": peak, "arrived": arrived}
        raise KeyError(route)

    for line in sys.stdin:
        try:
            result = {"result": answer(*json.loads(line))}
        except Exception as error:  # noqa: BLE001  # as vLLM's server answers with it
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    _serve()
