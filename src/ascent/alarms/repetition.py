"""Does a completion say one thing over and over?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

LONGEST_PHRASE = 32  # tokens
FEWEST_TOKENS = 24  # a shorter completion says too little
FEWEST_TIMES = 6  # in a row
SHARE = 0.5  # of the completion


def repeats(token_ids: Sequence[int] | NDArray[np.int32]) -> bool:
    """Whether one token, or one phrase of up to 32, fills at least half of a completion, said at least 6 times in a
    row. Completions of fewer than 24 tokens never do.

    A text repeats with period p over a stretch where token i equals token i - p; a stretch of n such tokens is the
    phrase said n / p + 1 times.
    """
    import numpy as np

    ids_C = np.asarray(token_ids)
    length = len(ids_C)
    if length < FEWEST_TOKENS:
        return False
    for period in range(1, min(LONGEST_PHRASE, length // FEWEST_TIMES) + 1):
        needed = max((FEWEST_TIMES - 1) * period, int(SHARE * length) - period)
        if _longest_run(ids_C[period:] == ids_C[:-period]) >= needed:
            return True
    return False


def _longest_run(equal_C: NDArray[np.bool_]) -> int:
    """How many of these follow one another at most."""
    import numpy as np

    ends = np.flatnonzero(~equal_C)
    return int(np.diff(ends, prepend=-1, append=len(equal_C)).max() - 1)
