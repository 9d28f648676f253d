"""A server's worker that receives weights over HTTP, in a process of its own: the real receiving engine, over a model
that only takes fingerprints. vLLM, which takes ten seconds to load, is stood in for.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import threading
import time
import types
from collections.abc import Mapping
from typing import Any

_PROCESSES = multiprocessing.get_context("forkserver")  # which loads torch once for all of them
_PROCESSES.set_forkserver_preload(["torch", "numpy", "http.client", "ascent.rollout.in_vllm.fingerprints"])


class Receiver:
    """A ControlPlane over such a process. `host` is by what name the trainer knows its machine."""

    vllm_version = "0.31.0"

    def __init__(self, host: str = "127.0.0.1", number: int = 0) -> None:
        self.url = f"http://{host}:{number + 1}"
        self._connection, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._one_caller = threading.Lock()

    def post(self, route: str, body: Mapping[str, Any], *, timeout: float = 60.0) -> Any:
        from ascent.rollout.weights.control import ServerCallError

        with self._one_caller:
            try:
                self._connection.send((route, dict(body)))
                if not self._connection.poll(timeout):
                    raise ServerCallError(f"{route}: no answer in {timeout:g} s")
                answer = self._connection.recv()
            except (OSError, EOFError) as error:
                raise ServerCallError(f"{route}: {error or 'the connection was closed'}") from error
        if "error" in answer:
            raise ServerCallError(f"{route}: {answer['error']}", 500)
        return answer["result"]

    def get(self, route: str, *, timeout: float = 60.0) -> Any:
        return self.post(route, {}, timeout=timeout)

    def loaded(self) -> dict[str, str]:
        """Fingerprints of all that came in since this was asked last, by name."""
        found: dict[str, str] = self.post("loaded", {})
        return found

    def threads(self) -> int:
        """More than one while it fetches."""
        return int(self.post("figures", {})["threads"])

    def close(self) -> None:
        self.process.kill()
        self.process.join()


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


def _serve(connection: Any) -> None:
    """Answer until the connection ends."""
    _stand_in_for_vllm()
    import torch

    from ascent.rollout.in_vllm import host_chunks
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
            host_chunks.PATIENCE_SECONDS = body.pop("patience", host_chunks.PATIENCE_SECONDS)
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

    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        try:
            connection.send({"result": answer(*asked)})
        except Exception as error:  # noqa: BLE001  # as vLLM's server answers with it
            connection.send({"error": f"{type(error).__name__}: {error}"})
