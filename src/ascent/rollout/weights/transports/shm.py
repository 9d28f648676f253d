"""The trainer's side of `ascent_shm`: weights into shared memory, in chunks, while the servers load the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.in_vllm.plugin import SHM_BACKEND
from ascent.rollout.in_vllm.shared_memory import SegmentError, Slot, aligned
from ascent.rollout.weights.control import ControlPlane, ServerCallError
from ascent.rollout.weights.transports.base import Named, Reach, update_body
from ascent.rollout.weights.transports.shm_segments import Segment, remove_stale

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_CHUNK_BYTES = 32 * 2**20


class ShmTransport:
    """Two segments in turn: one is filled while the servers load the other.

    A chunk holds whole tensors and is at most `chunk_bytes` long, or as long as the one tensor that is longer. So two
    chunks of memory are used, and only while weights are sent.
    """

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
        chunks = _Chunks(walk, self._dtype, self._chunk_bytes, observe)
        loading = _Loading(replicas, self._timeout)
        try:
            for segment, slots in chunks:
                loading.start(segment, slots)
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


class _Loading:
    """The servers load one chunk at a time, all of them together."""

    def __init__(self, replicas: Sequence[ControlPlane], timeout: float) -> None:
        self.failed: dict[str, Exception] = {}
        self._replicas = replicas
        self._timeout = timeout
        self._pool = ThreadPoolExecutor(max(1, len(replicas)), thread_name_prefix="ascent-weights")
        self._running: dict[str, Future[Any]] = {}

    def start(self, segment: Segment, slots: Sequence[Slot]) -> None:
        """Wait for the chunk before, then load this one."""
        self.wait()
        described = [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape), "offset": s.offset} for s in slots]
        body = update_body({"segment": segment.name, "tensors": described})
        for replica in self._replicas:
            if replica.url not in self.failed:
                call = self._pool.submit(replica.post, "/update_weights", body, timeout=self._timeout)
                self._running[replica.url] = call

    def wait(self) -> None:
        """Until no server reads a segment any more."""
        for url, call in self._running.items():
            try:
                call.result()
            except ServerCallError as error:
                self.failed[url] = error
        self._running = {}

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class _Chunks:
    """Iterates over filled segments. A segment is filled anew two chunks later."""

    def __init__(
        self, walk: Iterator[tuple[str, Tensor]], dtype: str, chunk_bytes: int, observe: Callable[[str, Tensor], None]
    ) -> None:
        self._walk = walk
        self._dtype = dtype
        self._chunk_bytes = chunk_bytes
        self._observe = observe
        self._segments: list[Segment | None] = [None, None]
        self._turn = 0

    def __iter__(self) -> Iterator[tuple[Segment, list[Slot]]]:
        segment: Segment | None = None
        slots: list[Slot] = []
        end = 0
        for name, tensor in self._walk:
            slot = self._slot(name, tensor, aligned(end))
            if segment is not None and slot.offset + slot.nbytes > self._chunk_bytes:
                yield segment, slots
                segment, slots = None, []
            if segment is None:
                slot = self._slot(name, tensor, 0)
                segment = self._next_segment(slot.nbytes)
            memory = segment.tensor(slot)
            memory.copy_(tensor.detach())  # also casts, and fetches from a device
            self._observe(name, memory)
            slots.append(slot)
            end = slot.offset + slot.nbytes
        if segment is not None:
            yield segment, slots

    def close(self) -> None:
        for segment in self._segments:
            if segment is not None:
                segment.close()

    def _slot(self, name: str, tensor: Tensor, offset: int) -> Slot:
        dtype = self._dtype if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        return Slot(name, dtype, tuple(tensor.shape), offset)

    def _next_segment(self, needed: int) -> Segment:
        """The segment that is free now, replaced by a longer one where a tensor needs it."""
        self._turn = 1 - self._turn
        segment = self._segments[self._turn]
        if segment is None or segment.size < needed:
            if segment is not None:
                segment.close()
            segment = Segment(max(self._chunk_bytes, needed))
            self._segments[self._turn] = segment
        return segment
