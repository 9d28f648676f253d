"""Shapes of forward passes: each new one costs a slow step where kernels and graphs are built for it."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ascent import devices

_SLOW = 2.0  # times the median of the last steps
_STEPS = 20  # that the median is of
_KNOWN_FROM = 3  # steps
_NAMED = 4  # new shapes in a sentence


class Shapes:
    """Counts the shapes that this process's model has computed, and tells when a new one explains a slow step.

    An example: steps of 9 s, and then one of 41 s in which `saw("update", (8, 1088))` was said for the first time.
    """

    @classmethod
    def of_training(cls, model: Any, tell: Callable[[str], None]) -> Shapes:
        """Of all passes of a transformers model's backbone from now on, as it is laid out for them: with gradients
        ("update") or without ("logps"; sampling with this model, too)."""
        shapes = cls(tell, built=devices.kind() != "cpu")

        def see(_module: Any, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            ids = keywords.get("input_ids", positional[0] if positional else None)
            if ids is not None:
                shapes.saw("update" if torch.is_grad_enabled() else "logps", ids.shape)

        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        inner.base_model.register_forward_pre_hook(see, with_kwargs=True)
        return shapes

    def __init__(self, tell: Callable[[str], None], *, built: bool) -> None:
        """`tell` gets one sentence a slow step. `built`: this device builds kernels or graphs for each shape (not the
        CPU), so that a new one is a likely cause."""
        self._tell, self._built = tell, built
        self._seen: set[tuple[str, tuple[int, ...]]] = set()
        self._new: list[tuple[str, tuple[int, ...]]] = []
        self._seconds: deque[float] = deque(maxlen=_STEPS)

    def saw(self, kind: str, shape: Sequence[int]) -> None:
        """A forward pass of this kind ("update", "logps"), over tokens of this shape."""
        what = kind, tuple(shape)
        if what not in self._seen:
            self._seen.add(what)
            self._new.append(what)

    def finish_step(self, seconds: float) -> dict[str, float]:
        """The step's metrics: `shapes/new` of this step, `shapes/seen` of all so far. `seconds` is how long it took."""
        new, self._new = self._new, []
        usual = statistics.median(self._seconds) if len(self._seconds) >= _KNOWN_FROM else None
        if self._built and new and usual is not None and seconds > _SLOW * usual:
            named = ", ".join(f"{kind} {' x '.join(map(str, shape))}" for kind, shape in new[:_NAMED])
            more = f" and {len(new) - _NAMED} more" if len(new) > _NAMED else ""
            self._tell(
                f"note: this step took {seconds:.1f} s, the last ones {usual:.1f} s: it computed new shapes, for which "
                f"the device builds kernels ({named}{more}; {len(self._seen)} so far). trainer.pad_to_multiple_of=64 "
                "makes them fewer"
            )
        self._seconds.append(seconds)
        return {"shapes/new": float(len(new)), "shapes/seen": float(len(self._seen))}
