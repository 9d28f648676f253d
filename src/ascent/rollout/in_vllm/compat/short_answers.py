"""vLLM's server makes two pydantic objects for each token of an answer, and JSON of both. For 8,000 tokens that takes
0.1 to 0.2 s of its only event loop, in which it hands on nothing else: where 512 completions end together, the last
comes 50 to 100 s late. Seen in vLLM 0.23 to 0.31.

The mend, for requests that ask for it: the log-probabilities of all tokens in one string, base64 of little-endian
float32, in the place of the first token's name. Token ids stay as they are.

    asked for as ever    {"content": [{"token": "token_id:5", "logprob": -0.5, "top_logprobs": [...]}, ...]}
    asked for short      {"content": [{"token": "base64:float32:AAAAvw==..."}]}

A vLLM whose server is made otherwise answers as ever. Loaded inside the server's process: standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

HEADER = "x-ascent-short-answer"
MARK = "base64:float32:"
_SERVERS = (  # vLLM's modules; 0.31's, then 0.23's
    "vllm.entrypoints.scale_out.token_in_token_out.serving",
    "vllm.entrypoints.serve.disagg.serving",
)
_LEAST = -9999.0  # vLLM's own, for what is less likely, or was not scored
_asked: ContextVar[bool] = ContextVar("ascent_short_answer", default=False)


@contextlib.contextmanager
def answering(*, short: bool) -> Iterator[None]:
    """Inside, in the same context, vLLM makes short answers."""
    if short:
        _mend()
    token = _asked.set(short)
    try:
        yield
    finally:
        _asked.reset(token)


def _mend() -> None:
    serving: Any = next((sys.modules[name] for name in _SERVERS if name in sys.modules), None)
    tokens: Any = getattr(serving, "ServingTokens", None)
    long: Any = getattr(tokens, "_create_tokens_logprobs", None)
    if long is None or hasattr(long, "__wrapped__"):
        return

    @functools.wraps(long)
    def short_if_asked(
        self: Any, token_ids: Sequence[int], top_logprobs: Sequence[Mapping[int, Any] | None], *others: Any, **more: Any
    ) -> Any:
        if not _asked.get():
            return long(self, token_ids, top_logprobs, *others, **more)
        packed = pack(token_ids, top_logprobs)
        return serving.ChatCompletionLogProbs(content=[serving.ChatCompletionLogProbsContent(token=packed)])

    tokens._create_tokens_logprobs = short_if_asked


def pack(token_ids: Sequence[int], top_logprobs: Sequence[Mapping[int, Any] | None]) -> str:
    """The log-probabilities of sampled tokens, from vLLM's `{token: Logprob}` at each place, as one string."""
    entries = (None if at is None else at.get(token) for token, at in zip(token_ids, top_logprobs, strict=True))
    values = array("f", [_LEAST if entry is None else max(entry.logprob, _LEAST) for entry in entries])
    if sys.byteorder == "big":
        values.byteswap()
    return MARK + base64.b64encode(values.tobytes()).decode("ascii")
