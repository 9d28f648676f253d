"""New weights to all standing servers, verified: the steps in their order. docs/weights.md tells what each is for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ascent.rollout.engine import Canary, WeightMismatchError, WeightSyncError, WeightTransferError
from ascent.rollout.in_vllm.plugin import WORKER_EXTENSION
from ascent.rollout.weights.control import ControlPlane, NoServerReachedError, ServerCallError
from ascent.rollout.weights.transports.base import Transport
from ascent.rollout.weights.update_api import update_api
from ascent.rollout.weights.verify.canary import CanaryResult, CanaryTolerance, difference
from ascent.rollout.weights.verify.expectation import Difference, Expectation

if TYPE_CHECKING:
    from torch import Tensor

_NAMED_IN_MESSAGE = 5


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """What one delivery did. Servers go by their url."""

    version: int
    nbytes: int
    failed: Mapping[str, Exception]  # servers that did not get the weights, and why
    seconds: Mapping[str, float]  # "send", "finish", "verify", "canary"
    unseen: tuple[str, ...]  # parameters known to have arrived, but that no layer could be asked for afterwards
    canary: Mapping[str, CanaryResult] = field(default_factory=dict)


class WeightDelivery:
    """Delivers through one transport. Used by one thread; nothing is repeated by itself."""

    def __init__(self, transport: Transport, dtype: str, *, verify: bool = True, timeout: float = 300.0) -> None:
        """`dtype`: the servers'. `verify=False` leaves out fingerprints, probes and canary. Seconds per call."""
        self._transport = transport
        self._verify = verify
        self._timeout = timeout
        self._tolerance = CanaryTolerance(dtype)

    def deliver(
        self,
        replicas: Sequence[ControlPlane],
        named_tensors: Iterable[tuple[str, Tensor]],
        version: int,
        canary: Canary | None = None,
    ) -> DeliveryReport:
        """Load all weights into all servers and verify what they hold; nothing may be sampled meanwhile.

        `named_tensors` is walked once, to its end, whatever fails. Servers that failed are in the report; the others
        have the new weights. Raises WeightMismatchError when a server's weights are not what was sent (sending again is
        safe), NoServerReachedError when no server got them, WeightSyncError when the trainer's own are not finite.
        """
        delivery = _Delivery(self._transport, replicas, version, self._timeout, verify=self._verify)
        walk = iter(named_tensors)
        try:
            delivery.send(walk)
        except Exception:
            for _ in walk:  # other processes take part in the walk, whatever failed here
                pass
            raise
        if self._verify:
            delivery.verify()
            if canary is not None:
                delivery.ask(canary, self._tolerance)
        return delivery.report()

    def close(self) -> None:
        """Let go of memory and connections."""
        self._transport.close()


class _Delivery:
    """One delivery while it runs."""

    def __init__(
        self,
        transport: Transport,
        replicas: Sequence[ControlPlane],
        version: int,
        timeout: float,
        *,
        verify: bool,
    ) -> None:
        self._transport = transport
        self._replicas = list(replicas)
        self._version = version
        self._timeout = timeout
        self._verify = verify
        self._failed: dict[str, Exception] = {}
        self._different: dict[str, list[Difference]] = {}
        self._devices: dict[str, str] = {}
        self._incarnations: dict[str, str] = {}
        self._unseen: set[str] = set()
        self._canary: dict[str, CanaryResult] = {}
        self._seconds: dict[str, float] = {}
        self._expected = Expectation(seed=str(version))

    def send(self, walk: Iterator[tuple[str, Tensor]]) -> None:
        """From the first call to the reset of the prefix caches."""
        with self._timed("send"):
            if self._verify:
                self._each(self._begin)
            self._failed.update(self._transport.connect(self._alive(), self._incarnations))
            self._each(self._start)
            observe = self._expected.observe if self._verify else _unobserved
            if self._alive():
                self._failed.update(self._transport.send(self._alive(), walk, observe))
        for _ in walk:  # it is collective: its end is reached even when there is nobody to send to
            pass
        with self._timed("finish"):
            self._each(self._finish)

    def verify(self) -> None:
        """Compare what the servers hold and compute with what was sent."""
        with self._timed("verify"):
            self._each(self._compare)

    def ask(self, canary: Canary, tolerance: CanaryTolerance) -> None:
        """The canary, of servers that are right so far."""
        with self._timed("canary"):
            right = [replica for replica in self._alive() if replica.url not in self._different]
            means: dict[str, float] = {}

            def ask_one(replica: ControlPlane) -> None:
                means[replica.url] = difference(replica, canary, self._timeout)

            self._each(ask_one, right)
            for url, mean in sorted(means.items()):
                self._canary[url] = tolerance.check(mean, canary.trainer_dtype)

    def report(self) -> DeliveryReport:
        """See WeightDelivery.deliver for what is raised."""
        if self._expected.not_finite:
            names = self._expected.not_finite
            raise WeightSyncError(f"the trainer's own weights are not finite: {_listed(names)}")
        problems = [_different_text(url, found) for url, found in self._different.items()]
        problems += [
            f"{url}: log-probabilities of known sequences differ by {result.mean:.4g} on average, where "
            f"{result.allowed:.4g} is allowed, though every weight was seen to be right"
            for url, result in self._canary.items()
            if not result.agrees
        ]
        if problems:
            names = sorted({found.name for each in self._different.values() for found in each})
            raise WeightMismatchError(
                f"weights of version {self._version} are not right after the update. " + "; ".join(problems), names
            )
        if len(self._failed) == len(self._replicas):
            raise NoServerReachedError(self._failed)
        return DeliveryReport(
            self._version,
            self._expected.nbytes,
            dict(self._failed),
            dict(self._seconds),
            tuple(sorted(self._unseen)),
            dict(self._canary),
        )

    def _begin(self, replica: ControlPlane) -> None:
        try:
            reports = self._rpc(replica, "ascent_begin_update")
        except ServerCallError as error:
            if "ascent_begin_update" not in str(error):
                raise
            raise WeightSyncError(
                f"the server can't verify weights: start it with --worker-extension-cls {WORKER_EXTENSION}, or set "
                f"rollout.verify=false ({error})"
            ) from error
        self._devices[replica.url] = str(reports[0]["device"]).partition(":")[0]
        self._incarnations[replica.url] = ",".join(str(report["incarnation"]) for report in reports)

    def _start(self, replica: ControlPlane) -> None:
        body = update_api(replica.vllm_version).start_body()
        try:
            replica.post("/start_weight_update", body, timeout=self._timeout)
        except ServerCallError as error:
            if "already active" not in str(error):
                raise
            # vllm-ascend 0.23 leaves an update open that failed; what it loaded is replaced now.
            self._abandon(replica)
            replica.post("/start_weight_update", body, timeout=self._timeout)

    def _abandon(self, replica: ControlPlane) -> None:
        try:
            replica.post("/finish_weight_update", {}, timeout=self._timeout)
        except ServerCallError as error:
            if error.status is None:
                raise

    def _finish(self, replica: ControlPlane) -> None:
        made = update_api(replica.vllm_version)
        replica.post("/finish_weight_update", made.finish_body(self._version), timeout=self._timeout)
        answer = replica.post("/reset_prefix_cache", {}, timeout=self._timeout)
        if made.reports_cache_reset and (not isinstance(answer, Mapping) or answer.get("success") is not True):
            raise WeightTransferError("the prefix cache, which holds what the old weights computed, was not emptied")

    def _compare(self, replica: ControlPlane) -> None:
        reports = self._rpc(replica, "ascent_end_update", json.dumps({"seed": self._expected.seed}))
        found = self._expected.differences(reports, self._devices[replica.url])
        if found:
            self._different[replica.url] = found
            return
        lacking = sorted({name for report in reports for name in report["not_loaded"]})
        if lacking:
            raise WeightSyncError(
                f"{len(lacking)} weights of the server's model were not given: {_listed(lacking)}; the trainer's model "
                "and the server's model differ, or name their weights differently"
            )
        self._unseen |= set(self._expected.unseen(reports))

    def _rpc(self, replica: ControlPlane, method: str, *arguments: str) -> list[dict[str, Any]]:
        body = {"method": method, "args": list(arguments), "timeout": self._timeout}
        answer = replica.post("/collective_rpc", body, timeout=self._timeout)
        reports = answer.get("results") if isinstance(answer, Mapping) else None
        if not reports or not all(isinstance(report, dict) and "error" not in report for report in reports):
            raise WeightTransferError(f"{method} gave {str(answer)[:200]}")
        return reports

    def _alive(self) -> list[ControlPlane]:
        return [replica for replica in self._replicas if replica.url not in self._failed]

    def _each(self, step: Callable[[ControlPlane], None], replicas: Sequence[ControlPlane] | None = None) -> None:
        """A step for all servers at once; one that fails is left out from then on."""
        chosen = self._alive() if replicas is None else list(replicas)
        if not chosen:
            return
        with ThreadPoolExecutor(len(chosen), thread_name_prefix="ascent-weights") as pool:
            calls = {replica.url: pool.submit(step, replica) for replica in chosen}
        for url, call in calls.items():
            error = call.exception()
            if isinstance(error, (ServerCallError, WeightSyncError)):
                self._failed[url] = error
            elif error is not None:
                raise error

    def _timed(self, what: str) -> _Timed:
        return _Timed(self._seconds, what)


class _Timed:
    def __init__(self, seconds: dict[str, float], what: str) -> None:
        self._seconds, self._what = seconds, what

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._what] = time.perf_counter() - self._started


def _unobserved(name: str, tensor: Tensor) -> None:
    """Nothing is verified."""


def _different_text(url: str, found: Sequence[Difference]) -> str:
    shown = [f"{each.name} {each.what}" for each in found[:_NAMED_IN_MESSAGE]]
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return f"{url}: {', '.join(shown)}{more}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_IN_MESSAGE} more" if len(names) > _NAMED_IN_MESSAGE else ""
    return ", ".join(names[:_NAMED_IN_MESSAGE]) + more
