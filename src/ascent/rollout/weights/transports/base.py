"""The seam of the transports: how the bytes of one walk over the weights reach all servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ascent.rollout.weights.control import ControlPlane

if TYPE_CHECKING:
    from torch import Tensor

Named = Iterable[tuple[str, "Tensor"]]


class Transport(Protocol):
    """Used by one thread. Between `start_weight_update` and `finish_weight_update`, which are the caller's."""

    backend: str  # vLLM's name of the receiving engine

    def connect(self, replicas: Sequence[ControlPlane], incarnations: Mapping[str, str]) -> Mapping[str, Exception]:
        """Initialise the engines of servers that aren't yet. url -> what failed.

        `incarnations`: by url, another text whenever a server was started anew; "" where that isn't known.
        """
        ...

    def send(
        self, replicas: Sequence[ControlPlane], tensors: Named, observe: Callable[[str, Tensor], None]
    ) -> Mapping[str, Exception]:
        """Walk `tensors` once, to its end, and load them into all servers. url -> what failed.

        `observe` is called with each tensor as it is sent: its final dtype and device.
        """
        ...

    def close(self) -> None:
        """Let go of memory and connections."""
        ...


def update_body(info: Mapping[str, Any]) -> dict[str, Any]:
    """The body of `/update_weights`."""
    return {"update_info": dict(info)}
