"""What an engine says of given tokens, without sampling: their log-probabilities, and what it would rather have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Logps, TokenIds

_LOGITS = 2**28  # of one batch, at most (or one sequence's): 1 GiB in float32
RIVALS = 2  # most likely tokens to ask for at each place: one of them isn't the given one


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Of a sequence of T tokens, each but the first after those before it, at temperature 1: log-probabilities (T-1,),
    the most likely other token (T-1,) and its log-probability (T-1,). NaN where the engine gave none, and the rival's
    id is -1 there."""

    logps: Logps
    rivals: TokenIds
    rival_logps: Logps


class ScoringEngine(Protocol):
    """A RolloutEngine that also scores."""

    def score(self, sequences: Sequence[Sequence[int]]) -> list[TokenScores]:
        """Score sequences, one batch for the engine to arrange. Only while nothing is being sampled."""
        ...


def score_in_process(engine: Any, sequences: Sequence[Sequence[int]]) -> list[TokenScores]:
    """By vLLM's idle `LLMEngine`. A sequence must leave room for one token in the engine's context."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    asked = SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=RIVALS,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    for place, sequence in enumerate(sequences):
        engine.add_request(f"score-{place}", {"prompt_token_ids": list(sequence)}, asked)
    found: dict[str, list[Mapping[int, float] | None]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[output.request_id] = [
                    at and {token: entry.logprob for token, entry in at.items()} for at in output.prompt_logprobs or ()
                ]
    return [scores(sequence, found.get(f"score-{place}", ())) for place, sequence in enumerate(sequences)]


def scores(sequence: Sequence[int], places: Sequence[Mapping[int, float] | None]) -> TokenScores:
    """From vLLM's answer: for each token of the sequence the log-probabilities of some tokens there, its own among
    them; None for the first."""
    logps, rivals, rival_logps = [], [], []
    for place, token in enumerate(sequence[1:], start=1):
        at = (places[place] if place < len(places) else None) or {}
        others = {other: logp for other, logp in at.items() if other != token}
        rival = max(others, key=lambda other: others[other], default=-1)
        logps.append(at.get(token, math.nan))
        rivals.append(rival)
        rival_logps.append(others.get(rival, math.nan))
    return TokenScores(as_logps(logps), as_token_ids(rivals), as_logps(rival_logps))


def score_with_model(model: Any, sequences: Sequence[Sequence[int]], pad_token_id: int) -> list[TokenScores]:
    """By a causal language model of transformers: sequences padded on the right, as many at once as their logits leave
    room for."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    at_once = max(1, _LOGITS // (vocabulary * max(map(len, sequences))))
    found: list[TokenScores] = []
    for first in range(0, len(sequences), at_once):
        found += _score_batch(model, sequences[first : first + at_once], pad_token_id)
    return found


def _score_batch(model: Any, sequences: Sequence[Sequence[int]], pad_token_id: int) -> list[TokenScores]:
    import torch

    longest = max(map(len, sequences))
    ids_BT = np.full((len(sequences), longest), pad_token_id, dtype=np.int64)
    mask_BT = np.zeros_like(ids_BT)
    for row, sequence in enumerate(sequences):
        ids_BT[row, : len(sequence)] = sequence
        mask_BT[row, : len(sequence)] = 1
    input_ids_BT, attention_mask_BT = (torch.from_numpy(each).to(model.device) for each in (ids_BT, mask_BT))
    with torch.no_grad():
        logits_BTV = model(input_ids=input_ids_BT, attention_mask=attention_mask_BT, use_cache=False).logits
    found = []
    for row, sequence in enumerate(sequences):
        logps_TV = logits_BTV[row, : len(sequence) - 1].float().log_softmax(-1)
        own_T1 = input_ids_BT[row, 1 : len(sequence), None]
        logps_T = logps_TV.gather(1, own_T1)[:, 0]
        best = logps_TV.scatter(1, own_T1, -math.inf).max(-1)
        arrays = (each.cpu().numpy() for each in (logps_T, best.indices, best.values))
        logps, rivals, rival_logps = arrays
        found.append(TokenScores(as_logps(logps), as_token_ids(rivals), as_logps(rival_logps)))
    return found
