"""What Ascent adds to a vLLM worker: it tells which weights came in and what the layers now compute.

Given to vLLM as `--worker-extension-cls`; called over `/collective_rpc`, whose arguments are text. It trusts no
transport: it looks at the tensors as they enter the model's own loader, and at the model afterwards.

Loaded inside vLLM's processes: the standard library, torch and vllm only.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ascent.rollout.in_vllm import adapter_files, layerwise, tied_head
from ascent.rollout.in_vllm.fingerprints import exact_on, fingerprint
from ascent.rollout.in_vllm.model_report import Sent, model_report

_INCARNATION = secrets.token_hex(8)  # of this process
Named = tuple[str, torch.Tensor]


class AscentWorkerExtension:
    """Mixed into vLLM's worker class; names begin with `ascent_` so as not to meet vLLM's."""

    def ascent_begin_update(self) -> dict[str, Any]:
        """Watch from now on what enters the model's `load_weights`."""
        model = self._ascent_model()
        if not getattr(self, "_weight_update_active", False):
            layerwise.end_left_over(model, self.model_config)  # type: ignore[attr-defined]
        device = str(self.device)  # type: ignore[attr-defined]  # an update that was given up may leave a model on meta
        arrivals = _Arrivals(model, device)
        self.ascent_arrivals = arrivals
        model.load_weights = arrivals.load
        return {"device": device, "dtype": self._ascent_dtype(), "incarnation": _INCARNATION}

    def ascent_end_update(self, request: str) -> dict[str, Any]:
        """The fingerprints of what came in, and the probes of the model. `request`: JSON with `seed`."""
        seed = str(json.loads(request)["seed"])
        model = self._ascent_model()
        arrivals: _Arrivals | None = getattr(self, "ascent_arrivals", None)
        if arrivals is None:
            return {"error": "no update was begun"}
        arrivals.remove()
        if arrivals.device.startswith("cpu") and tied_head.is_packed(model) and _reload_is_the_workers():
            tied_head.pack_again(model)
        with torch.no_grad():
            report = model_report(model, arrivals.seen, seed, self._ascent_dtype())
        fingerprints = {name: sent.fingerprint for name, sent in arrivals.seen.items()}
        not_loaded = sorted({*arrivals.not_loaded(), *report.pop("parts_not_sent")})
        return {"fingerprints": fingerprints, "twice": sorted(arrivals.twice), "not_loaded": not_loaded, **report}

    def ascent_adapter_piece(self, request: str) -> dict[str, Any]:
        """One piece of an adapter's files (`adapter_files.receive`), which one worker of a server writes for all."""
        try:
            return adapter_files.receive(json.loads(request)) if self._ascent_is_first() else {"size": None}
        except (OSError, ValueError, KeyError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def ascent_adapter_folder(self, request: str) -> dict[str, Any]:
        """Where the files of an adapter are, for vLLM, which is to load it now. `request`: JSON with `name`."""
        if getattr(self, "ascent_loaded", None) is None:
            self.ascent_loaded = adapter_files.Loaded(self.model_runner.lora_manager)  # type: ignore[attr-defined]
        return {"folder": str(adapter_files.folder_of(json.loads(request)["name"]))}

    def ascent_adapter_drop(self, request: str) -> dict[str, Any]:
        """Let go of an adapter that was unloaded, where there is one. `request`: JSON with `name`."""
        if getattr(self, "ascent_loaded", None) is not None:
            self.ascent_loaded.drop(json.loads(request)["name"])
        return {}

    def ascent_adapter_report(self, request: str) -> dict[str, Any]:
        """What this worker holds of an adapter, and the digests of its files. `request`: JSON with `name`."""
        name = json.loads(request)["name"]
        return {
            "dtype": self._ascent_dtype(),
            "digests": adapter_files.digest(name),
            "tensors": self.ascent_loaded.tensors(name),
        }

    def _ascent_is_first(self) -> bool:
        return int(self.rank) == 0  # type: ignore[attr-defined]

    def _ascent_model(self) -> Any:
        return self.model_runner.model  # type: ignore[attr-defined]  # vLLM's worker has it

    def _ascent_dtype(self) -> str:
        return str(self.model_config.dtype).removeprefix("torch.")  # type: ignore[attr-defined]


class _Arrivals:
    """Stands before a model's `load_weights` and fingerprints each tensor that passes."""

    def __init__(self, model: Any, device: str) -> None:
        self.device = device
        self.seen: dict[str, Sent] = {}
        self.twice: set[str] = set()
        self.loaded: set[str] | None = set()  # names of the model's parameters; None where the model doesn't tell
        self._model = model
        self._on_host = not exact_on(device)
        model.__dict__.pop("load_weights", None)  # one of an update that was given up

    def load(self, weights: Iterable[Named], *args: Any, **kwargs: Any) -> Any:
        """Takes the place of the model's own `load_weights`, and calls it."""
        loaded = type(self._model).load_weights(self._model, self._passing(weights), *args, **kwargs)
        self.loaded = None if self.loaded is None or loaded is None else self.loaded | set(loaded)
        return loaded

    def not_loaded(self) -> set[str]:
        """Parameters of the model that kept their old values."""
        if self.loaded is None:
            return set()
        return {name for name, _ in self._model.named_parameters()} - self.loaded - tied_head.tied_names(self._model)

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
    """Whether vLLM's worker reloads layers itself, as before 0.25; no transfer engine sees an update end then."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine

    return not hasattr(WeightTransferEngine, "finish_weight_update")
