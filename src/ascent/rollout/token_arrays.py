"""Makes the arrays that completions are held in: read-only, of one type wherever they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ascent.types import Logps, TokenIds

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_token_ids(values: Sequence[int] | NDArray[Any]) -> TokenIds:
    """Token ids, (C,) int32."""
    return _read_only(np.array(values, dtype=np.int32))


def as_logps(values: Sequence[float | None] | NDArray[Any]) -> Logps:
    """Log-probabilities, (C,) float32; None becomes NaN."""
    return _read_only(np.array(values, dtype=np.float32))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
