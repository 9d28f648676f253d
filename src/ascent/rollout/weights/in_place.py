"""New weights into a vLLM model of this process, on npu and cuda: through the model's own `load_weights`.

`WeightLoader` is the seam of all adapters for an engine in the trainer's process: this one and `packed_cpu`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ascent.rollout.engine import WeightSyncError

if TYPE_CHECKING:
    from torch import Tensor


class WeightLoader(Protocol):
    """Replaces all weights of a vLLM model in this process."""

    def load(self, model: Any, model_config: Any, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load all weights into `model`, vLLM's module, whose `ModelConfig` is `model_config`.

        `named_tensors` has them under their Hugging Face names, in any order, on any device and in any float dtype.
        Afterwards the model computes with exactly these values in its own dtype, tied weights included. Raises
        WeightSyncError when a parameter of the model was not reached: nothing keeps its old value unnoticed, and after
        an error the engine must not be used.
        """
        ...


class InPlaceWeights:
    """Dense weights whose layout in the engine is that of the checkpoint, up to fused rows."""

    def load(self, model: Any, model_config: Any, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """See WeightLoader."""
        del model_config
        empty = [name for name, parameter in model.named_parameters() if parameter.numel() == 0]
        if empty:
            raise WeightSyncError(
                f"the engine keeps {len(empty)} weights in a packed form (first: {empty[0]}), which new values can't "
                "reach in place"
            )
        load_all(model, named_tensors)


def load_all(model: Any, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Call the model's `load_weights` and make sure that every parameter was reached."""
    last = [""]

    def noted() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in named_tensors:
            last[0] = name
            yield name, tensor

    try:
        loaded = model.load_weights(noted())
    except (KeyError, ValueError, AttributeError, AssertionError) as error:  # what vLLM's loaders say of other names
        raise WeightSyncError(
            f"the engine's model can't load {last[0]} ({type(error).__name__}: {error}); the trainer's model and the "
            "engine's model name or shape their weights differently"
        ) from error
    if loaded is None:  # older models don't say what they loaded
        return
    expected = {name for name, _ in model.named_parameters()}
    if getattr(model.config, "tie_word_embeddings", False):
        expected = {name for name in expected if not name.startswith("lm_head.")}  # it is the embedding
    missing = sorted(expected - set(loaded))
    if missing:
        raise WeightSyncError(
            f"{len(missing)} weights of the engine's model were not updated (first: {missing[0]}); "
            "the trainer's model and the engine's model name their weights differently"
        )
