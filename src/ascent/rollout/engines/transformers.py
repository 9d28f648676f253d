"""Sampling with transformers' `generate`: slow, but it needs no vLLM and shares the trainer's weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ascent.rollout.engine import Canary, EngineNeeds, EnginePlace, check_length
from ascent.rollout.engines.counter import EngineCounter
from ascent.types import Completion, EngineStats, RolloutRequest, Sampling

if TYPE_CHECKING:
    import torch
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
        input_ids_BP, attention_mask_BP = self._left_padded([request.prompt_ids for request, _, _ in rows])
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
        completions = []
        for row, (request, index, submitted_at) in enumerate(rows):
            token_ids, ended = self._until_end(ids_BT[row, input_ids_BP.size(1) :].tolist())
            completions.append(
                Completion(
                    group_id=request.group_id,
                    index=index,
                    prompt_ids=request.prompt_ids,
                    token_ids=token_ids,
                    logps=() if logps is None else tuple(logps[row, : len(token_ids)].tolist()),
                    finish_reason="stop" if ended else "length",
                    weight_version=self._version,
                    submitted_at=submitted_at,
                    finished_at=now,
                )
            )
        return completions

    def _left_padded(self, prompts: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        width = max(len(ids) for ids in prompts)
        ids = [[self._pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        return torch.tensor(ids), torch.tensor(mask)

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

        prompt_length = prompt_mask_BP.size(1)
        mask_BT = torch.cat([prompt_mask_BP, torch.ones_like(ids_BT[:, prompt_length:])], dim=1)
        logits_BCV = model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, prompt_length - 1 : -1].float()
        logps_BCV = (logits_BCV / (sampling.temperature or 1.0)).log_softmax(-1)
        return logps_BCV.gather(-1, ids_BT[:, prompt_length:, None]).squeeze(-1)

    def _until_end(self, token_ids: list[int]) -> tuple[tuple[int, ...], bool]:
        """The tokens up to and including the first end token, and whether there was one."""
        for position, token in enumerate(token_ids):
            if token in self._eos_token_ids:
                return tuple(token_ids[: position + 1]), True
        return tuple(token_ids), False
