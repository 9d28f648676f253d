"""The control plane of one sampling server, as the parts that move and verify weights see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ascent.rollout.engine import Canary

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


class WeightDelivery(Protocol):
    """Moves weights into servers and makes sure that they arrived. Made by `rollout.weights`."""

    def deliver(
        self,
        replicas: Sequence[ControlPlane],
        named_tensors: Iterator[tuple[str, Tensor]],
        version: int,
        canary: Canary | None,
    ) -> None:
        """Give all `replicas` the same weights; returns when each has them, verified.

        The servers sample nothing in the meantime; the caller says `begin` before and `commit` after it. Names and
        shapes are those of the Hugging Face checkpoint. Raises WeightSyncError, WeightMismatchError or ServerCallError
        when no replica may be used, PartialDeliveryError when some may.
        """
        ...


class ServerCallError(RuntimeError):
    """A call to a sampling server failed. `status` is the HTTP status, None when there was no whole answer; `code` is
    the guard's reason, where it was the guard that refused."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class PartialDeliveryError(RuntimeError):
    """Some servers have the weights, verified, and others don't: `failed` says which and why, by their URLs."""

    def __init__(self, failed: Mapping[str, Exception]) -> None:
        super().__init__("; ".join(f"{url}: {error}" for url, error in failed.items()))
        self.failed = dict(failed)
