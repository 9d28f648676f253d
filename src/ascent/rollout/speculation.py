"""Speculative decoding without a second model: several tokens guessed from text that was seen, judged in one pass.

vLLM accepts a guessed token with the probability that the model gives it and draws anew where it doesn't, so
completions have the model's distribution (Leviathan et al. 2023, arXiv:2211.17192), and their log-probabilities are the
model's.

- `ngram` goes on as the completion's own text, or its prompt, went on after the same last tokens;
- `suffix` also as other completions did, of this generation and earlier ones (arXiv:2411.04975).
"""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from ascent.errors import InputError

Method = Literal["ngram", "suffix"]
_NEEDS = {"ngram": ("numba", "numba"), "suffix": ("arctic_inference", "arctic-inference")}  # module, package
_LONGEST_MATCH, _SHORTEST_MATCH = 4, 2  # tokens that must be alike, for ngram


def speculative_config(method: Method | None, tokens: int) -> dict[str, Any] | None:
    """vLLM's `speculative_config` for guesses of at most `tokens` tokens; None for none."""
    if method is None:
        return None
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": tokens}
    if method == "ngram":
        config |= {"prompt_lookup_max": _LONGEST_MATCH, "prompt_lookup_min": _SHORTEST_MATCH}
    return config


def check_speculation(method: Method | None) -> None:
    """Raise InputError when vLLM's proposer of that name needs a package that isn't there."""
    if method is None:
        return
    module, package = _NEEDS[method]
    if importlib.util.find_spec(module) is None:
        raise InputError(
            f"speculative={method}: vLLM's proposer needs the package {package}, which is not installed",
            f"Install it (`pip install {package}`), or leave rollout.speculative out.",
        )
