"""What Ascent adds to a vLLM worker: it tells which weights came in and what the layers now compute.

Given to vLLM as `--worker-extension-cls`; called over `/collective_rpc`, whose arguments are text. It trusts no
transport: it looks at the tensors as they enter the model's own loader, and at the model afterwards.

Loaded inside vLLM's processes: the standard library, torch and vllm only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ascent.rollout.weights import tied_head
from ascent.rollout.weights.fingerprints import exact_on, fingerprint
from ascent.rollout.weights.model_report import Sent, model_report

Named = tuple[str, torch.Tensor]


class AscentWorkerExtension:
    """Mixed into vLLM's worker class; names begin with `ascent_` so as not to meet vLLM's."""

    def ascent_begin_update(self) -> dict[str, Any]:
        """Begin to record what enters the model's `load_weights`."""
        model = self._ascent_model()
        device = str(next(model.parameters()).device)
        recorder = _Recorder(model, on_host=not exact_on(device))
        self.ascent_recorder = recorder
        model.load_weights = recorder.load
        return {"device": device, "dtype": self._ascent_dtype()}

    def ascent_end_update(self, request: str) -> dict[str, Any]:
        """The fingerprints of what came in, and the probes of the model. `request`: JSON with `seed`."""
        seed = str(json.loads(request)["seed"])
        model = self._ascent_model()
        recorder: _Recorder | None = getattr(self, "ascent_recorder", None)
        if recorder is None:
            return {"error": "no update was begun"}
        recorder.remove()
        if _reload_is_the_workers() and next(model.parameters()).device.type == "cpu" and tied_head.is_packed(model):
            tied_head.pack_again(model)
        with torch.no_grad():
            report = model_report(model, recorder.seen, seed, self._ascent_dtype())
        fingerprints = {name: sent.fingerprint for name, sent in recorder.seen.items()}
        return {"fingerprints": fingerprints, "twice": sorted(recorder.twice), **report}

    def _ascent_model(self) -> Any:
        return self.model_runner.model  # type: ignore[attr-defined]  # vLLM's worker has it

    def _ascent_dtype(self) -> str:
        return str(self.model_config.dtype).removeprefix("torch.")  # type: ignore[attr-defined]


class _Recorder:
    """Stands before a model's `load_weights` and fingerprints each tensor that passes."""

    def __init__(self, model: Any, *, on_host: bool) -> None:
        self.seen: dict[str, Sent] = {}
        self.twice: set[str] = set()
        self._model = model
        self._on_host = on_host
        model.__dict__.pop("load_weights", None)  # one of an update that was given up

    def load(self, weights: Iterable[Named], *args: Any, **kwargs: Any) -> Any:
        """The model's own `load_weights`, seen from outside."""
        return type(self._model).load_weights(self._model, self._passing(weights), *args, **kwargs)

    def remove(self) -> None:
        """Give the model its own method back."""
        self._model.__dict__.pop("load_weights", None)

    def _passing(self, weights: Iterable[Named]) -> Iterator[Named]:
        for name, tensor in weights:
            if name in self.seen:
                self.twice.add(name)
            digest = fingerprint(name, tensor.cpu() if self._on_host else tensor)
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.seen[name] = Sent(digest, dtype, tuple(tensor.shape), not self._on_host)
            yield name, tensor


def _reload_is_the_workers() -> bool:
    """vLLM before 0.25: no transfer engine sees the end of an update."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine

    return not hasattr(WeightTransferEngine, "finish_weight_update")
