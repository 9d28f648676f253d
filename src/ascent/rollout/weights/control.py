"""The control plane of one sampling server, as the parts that move and verify weights see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ascent.rollout.engine import Canary, WeightSyncError

if TYPE_CHECKING:
    from torch import Tensor


class ControlPlane(Protocol):
    """One server that this trainer holds. Calls are blocking and never repeated by themselves.

    Every call carries the service's token and the trainer's hold. Raises ServerCallError when the server refuses, fails
    or does not answer in time.
    """

    @property
    def url(self) -> str:
        """Base address, without a slash at the end."""
        ...

    @property
    def vllm_version(self) -> str:
        """vLLM's version, as the server reports it."""
        ...

    def post(self, route: str, body: Mapping[str, Any], *, timeout: float) -> Any:
        """POST JSON to `route` (such as `/update_weights`); the decoded answer, None when it is empty. Seconds."""
        ...

    def get(self, route: str, *, timeout: float) -> Any:
        """GET `route`; the decoded answer."""
        ...


class Delivered(Protocol):
    """What became of one delivery."""

    @property
    def failed(self) -> Mapping[str, Exception]:
        """The servers that did not get the weights, by their url, and why. All others have them, verified."""
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """How long its parts took: "send" is bringing the weights to the servers and their loading."""
        ...


class WeightDelivery(Protocol):
    """Moves weights into servers and makes sure that they arrived. Made by `rollout.weights`."""

    def deliver(
        self,
        replicas: Sequence[ControlPlane],
        named_tensors: Iterable[tuple[str, Tensor]],
        version: int,
        canary: Canary | None,
    ) -> Delivered:
        """Give all `replicas` the same weights; returns when each has them, verified, or has failed.

        The servers sample nothing in the meantime; the caller says `begin` before and `commit` after it. Names and
        shapes are those of the Hugging Face checkpoint; `named_tensors` is iterated once. Raises WeightMismatchError
        when a server's weights are not what was sent, NoServerReachedError when no server got them, WeightSyncError
        when the trainer's own can't be sent.
        """
        ...

    def close(self) -> None:
        """Let go of memory and connections. Safe to call twice."""
        ...


class ServerCallError(RuntimeError):
    """A call to a sampling server failed. `status` is the HTTP status, None when there was no whole answer; `code` is
    the guard's reason, where it was the guard that refused."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class NoServerReachedError(WeightSyncError):
    """No server got the new weights. `failed`: what went wrong, by the server's url."""

    def __init__(self, failed: Mapping[str, Exception]) -> None:
        super().__init__("no server got the weights: " + "; ".join(f"{url}: {why}" for url, why in failed.items()))
        self.failed = dict(failed)
