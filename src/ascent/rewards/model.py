"""A reward that is a model, in TRL's way, but scored while other completions are still being sampled.

TRL scores all completions of a batch in one call when the batch is there. Here a thread scores what has ended, whenever
there is something, a few at a time. A completion's score is that of TRL's call, but for rounding: the sequences that it
is padded with are others (float32: about 1e-6), and which they are depends on when completions end.
"""

from __future__ import annotations

import copy
import functools
import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from ascent import devices
from ascent.errors import InputError
from ascent.rewards.base import Completion

_AT_ONCE = 16  # completions of one forward pass: little memory beside an engine or an update


@dataclass(frozen=True, slots=True)
class _Asked:
    """A completion that waits for its score."""

    prompt: Any  # as the dataset has it: text, or messages
    text: str
    score: Future[float]


class ModelReward:
    """A TRL reward function that a sequence classification model of one label makes.

    `start` queues a completion; the score is there when the reward is asked for, or waited for. Equal completions of
    equal prompts are scored once. On an accelerator the thread has a stream of its own, so that its kernels don't queue
    behind those of an update.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        name: str,
        *,
        device: torch.device,
        template_settings: Mapping[str, Any] | None = None,
        at_once: int = _AT_ONCE,
    ) -> None:
        """`model` is on `device`, in evaluation mode; `tokenizer` is TRL's `reward_processing_class`, of which a copy
        is used (a tokenizer serves one thread at a time); `template_settings` are TRL's `chat_template_kwargs`."""
        self.__name__ = name
        self._model, self._tokenizer, self._device = model, copy.deepcopy(tokenizer), device
        self._template_settings, self._at_once = dict(template_settings or {}), at_once
        self._scores: dict[tuple[str, str], Future[float]] = {}
        self._awaited: Counter[tuple[str, str]] = Counter()  # how many were started of each
        self._lock = threading.Lock()  # of these two, and of the thread
        self._queue: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, row: Mapping[str, Any], text: str) -> None:
        """Queue a completion of the dataset's `row` (see StreamedReward)."""
        with self._lock:
            self._awaited[_key(row["prompt"], text)] += 1
        self._score(row["prompt"], text)

    def drop(self, row: Mapping[str, Any], text: str) -> None:
        """See DroppableReward."""
        self._let_go([_key(row["prompt"], text)])

    def watch(self, row: Mapping[str, Any], text: str) -> Callable[[], bool]:
        """What tells, at once and in any thread, whether the score of a started completion is there."""
        return self._score(row["prompt"], text).done

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any) -> list[float]:
        """The score of each completion (TRL's signature); those that were never started are scored now. Raises
        InputError when the model failed, or gave anything but a finite number for each."""
        texts = [each if isinstance(each, str) else str(each[-1].get("content") or "") for each in completions]
        pairs = list(zip(prompts, texts, strict=True))
        scores = [self._score(prompt, text) for prompt, text in pairs]
        try:
            return [score.result() for score in scores]
        finally:
            self._let_go([_key(prompt, text) for prompt, text in pairs])

    def close(self) -> None:
        """End the thread once it has scored what is queued."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _score(self, prompt: Any, text: str) -> Future[float]:
        key = _key(prompt, text)
        with self._lock:
            score = self._scores.get(key)
            if score is None:
                score = self._scores[key] = Future()
                self._queue.put(_Asked(prompt, text, score))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=f"ascent-{self.__name__}", daemon=True)
                    self._thread.start()
        return score

    def _let_go(self, keys: Sequence[tuple[str, str]]) -> None:
        """Forget scores, but for those that a started completion of another batch will ask for."""
        with self._lock:
            self._awaited.subtract(keys)
            for key in keys:
                if self._awaited[key] <= 0:
                    del self._awaited[key]
                    self._scores.pop(key, None)

    def _work(self) -> None:
        """Score what is queued, up to `at_once` together, until `close`."""
        ended = False
        while not ended and (first := self._queue.get()) is not None:
            batch = [first]
            while len(batch) < self._at_once and not self._queue.empty():
                following = self._queue.get()  # nobody else takes from it
                if following is None:
                    ended = True
                    break
                batch.append(following)
            self._answer(batch)

    def _answer(self, batch: Sequence[_Asked]) -> None:
        try:
            with torch.inference_mode(), devices.on_stream(self._stream):
                scores = self._scored(batch)
            for asked, score in zip(batch, scores, strict=True):
                asked.score.set_result(score)
        except Exception as error:  # noqa: BLE001 - raised by whoever asks for a score
            failure = error if isinstance(error, InputError) else self._failure(error)
            for asked in batch:
                if not asked.score.done():
                    asked.score.set_exception(failure)

    @functools.cached_property
    def _stream(self) -> Any:
        """One for all passes: torch keeps memory for each stream apart."""
        return devices.new_stream()

    def _scored(self, batch: Sequence[_Asked]) -> list[float]:
        """One forward pass. Inputs are made as TRL makes them."""
        inputs = self._tokenizer(
            text=[self._input(asked) for asked in batch],
            return_tensors="pt",
            padding=True,
            padding_side="right",
            add_special_tokens=False,
        ).to(self._device)
        logits_BK = self._model(**inputs).logits
        if logits_BK.ndim != 2 or len(logits_BK) != len(batch):
            raise InputError(
                f"reward model {self.__name__}: logits of shape {tuple(logits_BK.shape)} for {len(batch)} completions",
                f"Expected ({len(batch)}, 1): a sequence classification model with one label.",
            )
        scores: list[float] = logits_BK[:, 0].float().cpu().tolist()
        wrong = [number for number, score in enumerate(scores) if not abs(score) < float("inf")]
        if wrong:
            length = int(inputs["attention_mask"][wrong[0]].sum())
            raise InputError(
                f"reward model {self.__name__}: {scores[wrong[0]]} for {len(wrong)} of {len(scores)} completions (the "
                f"first has {length} tokens with its prompt)",
                "Its numbers overflow: load it in float32 or bfloat16, and look at its weights.",
            )
        return scores

    def _input(self, asked: _Asked) -> str:
        if isinstance(asked.prompt, str):
            return asked.prompt + asked.text
        from trl.data_utils import apply_chat_template

        messages = [*asked.prompt, {"role": "assistant", "content": asked.text}]
        text: str = apply_chat_template({"messages": messages}, self._tokenizer, **self._template_settings)["text"]
        return text

    def _failure(self, error: Exception) -> InputError:
        failure = InputError(
            f"reward model {self.__name__} failed: {type(error).__name__}: {error}",
            "With stream_reward_models=off TRL calls it, in the training's own thread.",
        )
        failure.__cause__ = error
        return failure


def _key(prompt: Any, text: str) -> tuple[str, str]:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True), text
