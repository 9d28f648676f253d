"""Sampling with transformers' `generate`: slow, but it needs no vLLM and shares the trainer's weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from ascent.rollout.engine import Canary, EngineNeeds, EnginePlace, check_length
from ascent.rollout.engines.counter import EngineCounter
from ascent.rollout.engines.scoring import TokenScores, score_with_model
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Completion, EngineStats, RolloutRequest, Sampling

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

ModelContext = Callable[[], AbstractContextManager[Any]]


class TransformersEngine:
    """A RolloutEngine that samples everything submitted in one batch, at the first `poll`.

    `model` opens the policy for generation (the trainer unwraps and gathers it there). Sampling draws from torch's
    global random state, as TRL's own path does; `seed` of a request is not used. With `with_logps` a second forward
    pass gives the log-probabilities of the sampled tokens, otherwise `Completion.logps` is empty. `dtype` is the
    model's own.
    """

    place = EnginePlace.TRAINERS_MODEL
    dtype = "auto"

    def __init__(
        self,
        model: ModelContext,
        *,
        eos_token_ids: Sequence[int],
        pad_token_id: int,
        bos_token_id: int | None,
        max_model_len: int,
        with_logps: bool = False,
    ) -> None:
        self._model = model
        self._eos_token_ids = list(eos_token_ids)
        self._pad_token_id = pad_token_id
        self._bos_token_id = bos_token_id
        self._max_model_len = max_model_len
        self._with_logps = with_logps
        self._queue: list[tuple[RolloutRequest, float]] = []
        self._counter = EngineCounter()
        self._version = 0

    @classmethod
    def for_trainer(cls, needs: EngineNeeds) -> TransformersEngine:
        """The engine that samples with the trainer's own model."""
        return cls(
            needs.open_model,
            eos_token_ids=needs.eos_token_ids,
            pad_token_id=needs.pad_token_id,
            bos_token_id=needs.bos_token_id,
            max_model_len=needs.max_model_len,
        )

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """See RolloutEngine."""
        for request in requests:
            check_length(request, self._max_model_len)
        now = time.monotonic()
        self._queue += [(request, now) for request in requests]

    def unfinished(self) -> int:
        """See RolloutEngine."""
        return sum(request.n for request, _ in self._queue)

    def poll(self) -> list[Completion]:
        """See RolloutEngine. Samples the requests at the head of the queue that share their sampling settings."""
        if not self._queue:
            return []
        sampling = self._queue[0][0].sampling
        batch = [entry for entry in self._queue if entry[0].sampling == sampling]
        self._queue = [entry for entry in self._queue if entry[0].sampling != sampling]
        with self._counter.busy():
            completions = self._sample(batch, sampling)
        for completion in completions:
            self._counter.finished(completion)
        self._counter.running = max(self._counter.running, len(completions))
        return completions

    def score(self, sequences: Sequence[Sequence[int]]) -> list[TokenScores]:
        """See ScoringEngine; all in one forward pass."""
        with self._model() as model:
            return score_with_model(model, sequences, self._pad_token_id)

    def needs_weights(self, *, others_do: bool = False) -> bool:
        """See RolloutEngine."""
        del others_do
        return False

    def update_weights(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, canary: Canary | None = None
    ) -> None:
        """The weights are the trainer's own; only the version changes."""
        del named_tensors, canary
        self._version = version

    def stats(self) -> EngineStats:
        """See RolloutEngine."""
        return self._counter.take()

    def close(self) -> None:
        """See RolloutEngine."""
        self._queue.clear()

    def _sample(self, batch: list[tuple[RolloutRequest, float]], sampling: Sampling) -> list[Completion]:
        import torch

        rows = [(request, index, at) for request, at in batch for index in range(request.n)]
        input_ids_BP, attention_mask_BP = self._left_padded([request for request, _ in batch])
        with self._model() as model, torch.no_grad():
            ids_BT = model.generate(
                input_ids=input_ids_BP.to(model.device),
                attention_mask=attention_mask_BP.to(model.device),
                generation_config=self._generation_config(sampling, input_ids_BP.size(1)),
            )
            logps = (
                self._score(model, ids_BT, attention_mask_BP.to(model.device), sampling) if self._with_logps else None
            )
        now = time.monotonic()
        ids_BC = ids_BT[:, input_ids_BP.size(1) :].cpu().numpy()
        logps_BC = None if logps is None else logps.cpu().numpy()
        lengths, ended = self._until_end(ids_BC)
        completions = []
        for row, (request, index, submitted_at) in enumerate(rows):
            completions.append(
                Completion(
                    group_id=request.group_id,
                    index=index,
                    prompt_ids=request.prompt_ids,
                    token_ids=as_token_ids(ids_BC[row, : lengths[row]]),
                    logps=as_logps(() if logps_BC is None else logps_BC[row, : lengths[row]]),
                    finish_reason="stop" if ended[row] else "length",
                    weight_version=self._version,
                    submitted_at=submitted_at,
                    finished_at=now,
                )
            )
        return completions

    def _left_padded(self, requests: Sequence[RolloutRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompts, each as often as its request says, and their mask: both (B, P) int64."""
        import torch

        width = max(len(request.prompt_ids) for request in requests)
        ids_GP = np.full((len(requests), width), self._pad_token_id, dtype=np.int64)
        mask_GP = np.zeros_like(ids_GP)
        for group, request in enumerate(requests):
            ids_GP[group, width - len(request.prompt_ids) :] = request.prompt_ids
            mask_GP[group, width - len(request.prompt_ids) :] = 1
        copies = [request.n for request in requests]
        return torch.from_numpy(ids_GP.repeat(copies, axis=0)), torch.from_numpy(mask_GP.repeat(copies, axis=0))

    def _generation_config(self, sampling: Sampling, width: int) -> Any:
        """`width` is the length of the longest prompt in the batch."""
        from transformers import GenerationConfig

        greedy = sampling.temperature == 0
        chosen = (
            {"do_sample": False}
            if greedy
            else {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p or None,
            }
        )
        settings = {
            "max_new_tokens": self._max_model_len - width if sampling.max_tokens is None else sampling.max_tokens,
            "pad_token_id": self._pad_token_id,
            "bos_token_id": self._bos_token_id,
            "eos_token_id": [*self._eos_token_ids, *sampling.stop_token_ids],
            "repetition_penalty": sampling.repetition_penalty,
            "disable_compile": True,
            **chosen,
            **dict(sampling.extra),
        }
        return GenerationConfig(**settings)

    def _score(self, model: Any, ids_BT: Tensor, prompt_mask_BP: Tensor, sampling: Sampling) -> Tensor:
        """Log-probabilities of the sampled tokens, (B, C) float32, at the sampling temperature."""
        import torch

        from ascent.models.token_logps import token_logps

        prompt_length = prompt_mask_BP.size(1)
        mask_BT = torch.cat([prompt_mask_BP, torch.ones_like(ids_BT[:, prompt_length:])], dim=1)
        return token_logps(model, ids_BT, mask_BT, ids_BT.size(1) - prompt_length, sampling.temperature or 1.0)

    def _until_end(self, ids_BC: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many tokens there are up to and including the first end token, and whether there is one: both (B,)."""
        ends_BC = np.isin(ids_BC, self._eos_token_ids)
        ended: NDArray[np.bool_] = np.any(ends_BC, axis=1)
        return np.where(ended, ends_BC.argmax(axis=1) + 1, ids_BC.shape[1]), ended
