"""vLLM's side of the transport `ascent_http`: weights out of chunks that this host fetches from the trainer.

Loaded inside vLLM's processes: the standard library, torch and vllm only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo

from ascent.rollout.in_vllm.chunk_engine import ChunkEngine, LoadWeights
from ascent.rollout.in_vllm.host_chunks import Delivery, HostChunks


@dataclass
class HttpUpdateInfo(WeightTransferUpdateInfo):
    """One chunk: the delivery that it belongs to (see `Delivery`), its number, size in bytes and digest, and name,
    dtype, shape and offset of each tensor in it."""

    source: str
    token: str
    host: str
    chunk_bytes: int
    ahead: int
    relays: bool
    chunk: int
    size: int
    sha256: str | None
    tensors: list[dict[str, Any]]


class HttpWeightTransferEngine(ChunkEngine[HttpUpdateInfo]):
    """Chunks are pulled; the next one is on its way while one is loaded."""

    update_info_cls = HttpUpdateInfo
    _delivery: Delivery | None = None
    _chunks: HostChunks | None = None

    def receive_weights(self, update_info: HttpUpdateInfo, load_weights: LoadWeights | None = None) -> None:
        """Load one chunk. Raises FetchError or SegmentError when it can't be had, or isn't what was promised."""
        told = update_info
        delivery = Delivery(told.source, told.token, told.host, told.chunk_bytes, told.ahead, told.relays)
        if self._chunks is None or delivery != self._delivery:
            self.shutdown()
            self._delivery, self._chunks = delivery, HostChunks(delivery)
        try:
            segment = self._chunks.take(told.chunk, told.size, told.sha256)
            self._load(segment, told.tensors, load_weights)
        except BaseException:  # another worker of this host fetches on
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """Let go of what is fetched."""
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None
