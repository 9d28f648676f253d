"""A training's own LoRA adapter to standing servers, verified: base weights stay as they are, other adapters too.

The adapter goes as the two files of PEFT, in pieces over the servers' control route, so that nothing is shared between
machines; vLLM loads it under a name that has the version in it. So a version that isn't there can't be sampled from,
and what the prefix cache keeps of one version is never used for another.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ascent.rollout.engine import Canary, WeightMismatchError, WeightSyncError, WeightTransferError
from ascent.rollout.in_vllm.adapter_files import tensor_key
from ascent.rollout.weights.adapters import ADAPTER_CONFIG
from ascent.rollout.weights.control import ControlPlane, NoServerReachedError, ServerCallError
from ascent.rollout.weights.delivery import DeliveryReport
from ascent.rollout.weights.verify.canary import CanaryResult, CanaryTolerance, difference

if TYPE_CHECKING:
    from torch import Tensor

_PIECE = 4 * 2**20  # bytes in a call; the server samples nothing while it takes one


def adapter_name(training: str, hold: str) -> str:
    """The servers' name of a training's adapter: short, and no other training's."""
    plain = "".join(each if each.isascii() and each.isalnum() else "-" for each in training).strip("-")[:80]
    return f"{plain or 'training'}-{hold[:8]}"


class AdapterDelivery:
    """Delivers the adapter `name`. Used by one thread; nothing is repeated by itself. See control.WeightDelivery."""

    def __init__(self, name: str, dtype: str, *, verify: bool = True, timeout: float = 300.0) -> None:
        """`dtype`: the servers'. `verify=False` leaves out digests and canary. Seconds per call."""
        self._name, self._verify, self._timeout = name, verify, timeout
        self._tolerance = CanaryTolerance(dtype)
        self._loaded: dict[str, str] = {}  # by url, the version that the server has

    def deliver(
        self,
        replicas: Sequence[ControlPlane],
        named_tensors: Iterable[tuple[str, Tensor]],
        version: int,
        canary: Canary | None,
    ) -> DeliveryReport:
        """Load the adapter into all servers under `NAME@VERSION`, and verify what they hold.

        `named_tensors` is the walk of `weights.adapters.AdapterWalk`. Raises WeightMismatchError when a server holds
        another adapter than was sent, NoServerReachedError when no server got it, WeightSyncError when it isn't finite.
        """
        import torch

        began = time.perf_counter()
        tensors = {name: tensor.detach().cpu() for name, tensor in named_tensors}
        wrong = sorted(name for name, tensor in tensors.items() if not torch.isfinite(tensor.float()).all())
        if wrong:
            raise WeightSyncError(f"the trainer's own adapter is not finite: {', '.join(wrong[:5])}")
        files = _files(tensors)
        name = f"{self._name}@{version}"
        failed: dict[str, Exception] = {}
        _each(replicas, lambda replica: self._send(replica, name, files), failed)
        seconds = {"send": time.perf_counter() - began}
        different: dict[str, str] = {}
        canaries: dict[str, CanaryResult] = {}
        if self._verify:
            _each(replicas, lambda replica: self._compare(replica, name, files, tensors, different), failed)
            seconds["verify"] = time.perf_counter() - began - seconds["send"]
        if self._verify and canary is not None:
            means: dict[str, float] = {}

            def ask(replica: ControlPlane) -> None:
                means[replica.url] = difference(replica, canary, self._timeout, adapter=name)

            _each([each for each in replicas if each.url not in different], ask, failed)
            canaries = {url: self._tolerance.check(mean, canary.trainer_dtype) for url, mean in sorted(means.items())}
            different |= {
                url: f"log-probabilities of known sequences differ by {found.mean:.4g} on average, where "
                f"{found.allowed:.4g} is allowed"
                for url, found in canaries.items()
                if not found.agrees
            }
            seconds["canary"] = time.perf_counter() - began - sum(seconds.values())
        if different:
            told = "; ".join(f"{url}: {what}" for url, what in different.items())
            raise WeightMismatchError(f"adapter {name} is not right after it was loaded. {told}")
        if len(failed) == len(replicas):
            raise NoServerReachedError(failed)
        nbytes = sum(len(content) for content in files.values())
        return DeliveryReport(version, nbytes, failed, seconds, (), canaries)

    def close(self) -> None:
        """Nothing is kept open; the servers let go of an adapter when they need its place."""

    def _send(self, replica: ControlPlane, name: str, files: Mapping[str, bytes]) -> None:
        if (old := self._loaded.pop(replica.url, None)) is not None:
            self._unload(replica, old)
        for file, content in files.items():
            for offset in range(0, len(content), _PIECE):
                data = base64.b64encode(content[offset : offset + _PIECE]).decode()
                self._rpc(replica, "ascent_adapter_piece", {"name": name, "file": file, "offset": offset, "data": data})
        report = self._rpc(replica, "ascent_adapter_folder", {"name": name})[0]
        body = {"lora_name": name, "lora_path": report["folder"]}
        replica.post("/v1/load_lora_adapter", body, timeout=self._timeout)
        self._loaded[replica.url] = name

    def _unload(self, replica: ControlPlane, name: str) -> None:
        try:
            replica.post("/v1/unload_lora_adapter", {"lora_name": name}, timeout=self._timeout)
        except ServerCallError as error:
            if error.status not in (400, 404):  # a server that was restarted hasn't got it
                raise
        self._rpc(replica, "ascent_adapter_drop", {"name": name})

    def _compare(
        self,
        replica: ControlPlane,
        name: str,
        files: Mapping[str, bytes],
        tensors: Mapping[str, Tensor],
        different: dict[str, str],
    ) -> None:
        for report in self._rpc(replica, "ascent_adapter_report", {"name": name}):
            wanted = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
            if report["digests"] != wanted:
                different[replica.url] = "its files are not what was sent"
            elif report["tensors"] != _held_tensors(tensors, report["dtype"]):
                different[replica.url] = "what it loaded has other tensors than were sent"

    def _rpc(self, replica: ControlPlane, method: str, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        body = {"method": method, "args": [json.dumps(request)], "timeout": self._timeout}
        answer = replica.post("/collective_rpc", body, timeout=self._timeout)
        reports = answer.get("results") if isinstance(answer, Mapping) else None
        if not reports or not all(isinstance(report, dict) and "error" not in report for report in reports):
            raise WeightTransferError(f"{method} gave {str(answer)[:200]}")
        return reports


def _files(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """PEFT's files: what AdapterWalk yields under the name of the configuration is that file's bytes."""
    from safetensors.torch import save

    weights = {name: tensor.contiguous() for name, tensor in tensors.items() if name != ADAPTER_CONFIG}
    return {ADAPTER_CONFIG: tensors[ADAPTER_CONFIG].numpy().tobytes(), "adapter_model.safetensors": save(weights)}


def _held_tensors(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, int]:
    """The tensors as vLLM holds them, in its dtype and with the adapter's scaling in `lora_B`: how many of each
    `tensor_key`. In which layer each stands only the canary sees."""
    import torch

    config = json.loads(tensors[ADAPTER_CONFIG].numpy().tobytes())
    scaling = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    keys = []
    for name, tensor in tensors.items():
        if name == ADAPTER_CONFIG:
            continue
        held = tensor.to(getattr(torch, dtype), copy=True)
        if ".lora_B." in name and scaling != 1:
            held *= scaling
        keys.append(tensor_key(held))
    return dict(Counter(keys))


def _each(replicas: Sequence[ControlPlane], step: Callable[[ControlPlane], None], failed: dict[str, Exception]) -> None:
    """A step for all servers at once that haven't failed; one that fails is left out from then on."""
    chosen = [replica for replica in replicas if replica.url not in failed]
    if not chosen:
        return
    with ThreadPoolExecutor(len(chosen), thread_name_prefix="ascent-adapter") as pool:
        calls = {replica.url: pool.submit(step, replica) for replica in chosen}
    for url, call in calls.items():
        error = call.exception()
        if isinstance(error, (ServerCallError, WeightSyncError, WeightTransferError)):
            failed[url] = error
        elif error is not None:
            raise error
