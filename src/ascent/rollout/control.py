"""The control plane of one sampling server, as the parts that move and verify weights see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


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


class ServerCallError(RuntimeError):
    """A call to a sampling server failed. `status` is the HTTP status, None when there was no answer at all."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
