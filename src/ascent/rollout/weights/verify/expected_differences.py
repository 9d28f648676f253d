"""How far sampler and trainer may differ, by the precision of both: the one table of it.

Two implementations of a model never agree to the last bit. The figures are means of |sampler - trainer|, in nats, of
the log-probability of a token, over some hundred tokens or more. Seen when all was right, with small dense models: 1e-6
in float32, 0.001 to 0.003 in bfloat16; with a stale output head after three small updates 0.02, with other weights 7 to
9.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedDifference:
    """Mean differences: up to `usual` nothing is said, from `suspicious` on a person should look, and beyond `wrong` no
    rounding explains it: the sampler computes with other weights, or otherwise."""

    usual: float
    suspicious: float
    wrong: float


_FLOAT32 = ExpectedDifference(usual=1e-3, suspicious=1e-2, wrong=0.05)
_FLOAT16 = ExpectedDifference(usual=5e-3, suspicious=4e-2, wrong=0.15)
_BFLOAT16 = ExpectedDifference(usual=2e-2, suspicious=0.1, wrong=0.3)

# (sampler, trainer): what each computes in. The coarser of the two decides.
TABLE = {
    ("float32", "float32"): _FLOAT32,
    ("float32", "float16"): _FLOAT16,
    ("float32", "bfloat16"): _BFLOAT16,
    ("float16", "float32"): _FLOAT16,
    ("float16", "float16"): _FLOAT16,
    ("float16", "bfloat16"): _BFLOAT16,
    ("bfloat16", "float32"): _BFLOAT16,
    ("bfloat16", "float16"): _BFLOAT16,
    ("bfloat16", "bfloat16"): _BFLOAT16,
}


def expected_difference(sampler_dtype: str, trainer_dtype: str) -> ExpectedDifference:
    """The row of a precision pair; the widest one for a precision that isn't in the table, such as a quantised one."""
    return TABLE.get((sampler_dtype, trainer_dtype), _BFLOAT16)
