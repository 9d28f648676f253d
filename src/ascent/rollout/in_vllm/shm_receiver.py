"""vLLM's side of the transport `ascent_shm`: weights out of shared memory into the model.

Loaded inside vLLM's processes: the standard library, torch and vllm only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo

from ascent.rollout.in_vllm.chunk_engine import ChunkEngine, LoadWeights
from ascent.rollout.in_vllm.shared_memory import OpenedSegment


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):
    """One chunk: the segment's name, and name, dtype, shape and offset of each tensor in it."""

    segment: str
    tensors: list[dict[str, Any]]


class ShmWeightTransferEngine(ChunkEngine[ShmUpdateInfo]):
    """Chunks lie in segments of the trainer's."""

    update_info_cls = ShmUpdateInfo

    def receive_weights(self, update_info: ShmUpdateInfo, load_weights: LoadWeights | None = None) -> None:
        """Load one chunk. Raises SegmentError when its description doesn't fit the segment."""
        self._load(OpenedSegment(update_info.segment), update_info.tensors, load_weights)

    def shutdown(self) -> None:
        """Nothing is kept between chunks."""
