"""The trainer's side of `ascent_shm`: weights into shared memory, in chunks, while the servers load the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.in_vllm.owned_segments import Segment, remove_stale
from ascent.rollout.in_vllm.plugin import SHM_BACKEND
from ascent.rollout.in_vllm.shared_memory import SegmentError
from ascent.rollout.weights.control import ControlPlane
from ascent.rollout.weights.transports.base import Named, Reach
from ascent.rollout.weights.transports.filling import DEFAULT_CHUNK_BYTES, FilledChunks, described
from ascent.rollout.weights.transports.loading import Loading

if TYPE_CHECKING:
    from torch import Tensor


class ShmTransport:
    """Two segments in turn: one is filled while the servers load the other."""

    backend: ClassVar[str] = SHM_BACKEND
    reach: ClassVar[Reach] = Reach(
        "shared memory of this machine, which servers on any device read",
        device_kinds=("cpu", "npu", "cuda"),
        same_host=True,
    )

    def __init__(
        self,
        dtype: str,
        device: str = "cpu",
        *,
        address: str | None = None,
        chunk_bytes: int | None = None,
        timeout: float = 300.0,
    ) -> None:
        del device, address  # weights of any device are copied, to servers of this machine
        self._dtype, self._timeout = dtype, timeout
        self._chunk_bytes = chunk_bytes or DEFAULT_CHUNK_BYTES

    def connect(self, replicas: Sequence[ControlPlane], incarnations: Mapping[str, str]) -> Mapping[str, Exception]:
        """See Transport; the engine has nothing to initialise."""
        return {}

    def send(
        self, replicas: Sequence[ControlPlane], tensors: Named, observe: Callable[[str, Tensor], None]
    ) -> Mapping[str, Exception]:
        """See Transport. Raises WeightSyncError when there is no shared memory, after the walk has ended."""
        remove_stale()
        walk = iter(tensors)
        chunks = FilledChunks(walk, self._dtype, self._chunk_bytes, observe, Segment)
        loading = Loading(replicas, self._timeout)
        try:
            for segment, slots in chunks:
                info = {"segment": segment.name, "tensors": described(slots)}
                loading.start({replica.url: info for replica in replicas})
            loading.wait()
        except SegmentError as error:
            for _ in walk:  # other processes take part in the walk
                pass
            raise WeightSyncError(str(error)) from error
        finally:
            loading.close()
            chunks.close()
        return loading.failed

    def close(self) -> None:
        """See Transport."""
