"""TRL's reward functions called for groups, in whichever thread: plain ones, coroutines, and models."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl.data_utils import apply_chat_template, is_conversational
from trl.trainer.utils import is_async_callable

from ascent.errors import InputError
from ascent.rewards.base import ScoredReward
from ascent.training.batches.drawing.scored_group import GroupRewards
from ascent.types import Score

_NOT_COLUMNS = ("prompt", "completion", "completion_ids")  # of a dataset: TRL doesn't hand them on


@dataclass(frozen=True, slots=True)
class Question:
    """A group that is to be scored: the dataset's row, and its completions as TRL gives them to reward functions."""

    row: Mapping[str, Any]
    answers: Sequence[Any]
    completion_ids: Sequence[Sequence[int]]


class RewardCalls:
    """The reward functions of a trainer. `lock` is held while they are called: they keep what belongs to one batch."""

    def __init__(self, trainer: Any) -> None:
        """`trainer` is a GRPOTrainer whose TRL part is set up."""
        self.lock = threading.Lock()
        self._trainer = trainer

    def __call__(self, questions: Sequence[Question]) -> list[GroupRewards]:
        """The rewards of some groups' completions. Plain functions are called once for all of them, as TRL calls them
        once for a batch; coroutines for each group, all at once; models for each group, so that their padding and with
        it their rounding doesn't depend on which groups came together.

        Raises InputError, with the place in the code, for a function that fails or gives another number of rewards.
        """
        trainer = self._trainer
        asked = _Arguments(questions, trainer.state)
        given: list[torch.Tensor] = []
        scores: list[Score] = []
        seconds = 0.0
        functions = zip(trainer.reward_funcs, trainer.reward_processing_classes, trainer.reward_func_names, strict=True)
        with self.lock:
            for function, tokenizer, name in functions:
                try:
                    given.append(self._one(function, tokenizer, asked))
                except InputError:
                    raise
                except Exception as error:
                    raise InputError(_failed(name, questions, error), "The message is its own.") from error
                if len(given[-1]) != asked.count:
                    raise InputError(
                        f"the reward function {name!r} gave {len(given[-1])} rewards for {asked.count} completions",
                        "It must return one for each completion, None where it has none to give.",
                    )
                if isinstance(function, ScoredReward):
                    scores, seconds = list(function.scores), seconds + function.seconds
        rewards_BF = torch.stack(given, dim=1)
        found = []
        for number, group in enumerate(asked.places):
            first = number == 0  # what is about a whole call goes with its first group
            columns = {name: values[group] for name, values in asked.columns.items()}
            metrics = asked.metrics if first else []
            found.append(
                GroupRewards(rewards_BF[group], tuple(scores[group]), seconds if first else 0.0, columns, metrics)
            )
        return found

    def _one(self, function: Any, tokenizer: Any, asked: _Arguments) -> torch.Tensor:
        """What one function gives to all completions, float32."""
        if isinstance(function, torch.nn.Module):
            return torch.cat([self._model(function, tokenizer, each) for each in asked.questions])
        function = self._trainer._numerics.sources.checked(function)
        if is_async_callable(function):
            given = self._at_once([function(**asked.arguments([each])) for each in asked.questions])
        else:
            given = function(**asked.arguments(asked.questions))
        return torch.tensor([torch.nan if reward is None else reward for reward in given], dtype=torch.float32)

    def _at_once(self, coroutines: Sequence[Any]) -> list[Any]:
        async def gather() -> list[Any]:
            return [reward for given in await asyncio.gather(*coroutines) for reward in given]

        return asyncio.run_coroutine_threadsafe(gather(), self._trainer.async_loop).result()

    def _model(self, model: Any, tokenizer: Any, question: Question) -> torch.Tensor:
        prompt = question.row["prompt"]
        texts = [prompt + answer for answer in question.answers]
        if is_conversational({"prompt": prompt}):
            settings = self._trainer.chat_template_kwargs
            texts = [apply_chat_template({"messages": text}, tokenizer, **settings)["text"] for text in texts]
        inputs = tokenizer(
            text=texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False
        ).to(self._trainer.accelerator.device)
        with torch.inference_mode():
            logits_GK: torch.Tensor = model(**inputs).logits
        given = self._trainer._numerics.sources.finite(logits_GK[:, 0].float().tolist())
        return torch.tensor([torch.nan if reward is None else reward for reward in given])


class _Arguments:
    """What reward functions are called with for some groups, and what they log meanwhile. `places` are the groups' in
    the completions of all."""

    def __init__(self, questions: Sequence[Question], state: Any) -> None:
        self.questions = questions
        self.count = sum(len(each.answers) for each in questions)
        self.places: list[slice] = []
        for each in questions:
            begin = self.places[-1].stop if self.places else 0
            self.places.append(slice(begin, begin + len(each.answers)))
        self.columns: dict[str, list[Any]] = defaultdict(list)
        self.metrics: list[tuple[str, float]] = []
        self._state = state

    def arguments(self, questions: Sequence[Question]) -> dict[str, Any]:
        """TRL's keywords for one call."""
        rows = [each.row for each in questions for _ in each.answers]
        return {
            "prompts": [row["prompt"] for row in rows],
            "completions": [answer for each in questions for answer in each.answers],
            "completion_ids": [ids for each in questions for ids in each.completion_ids],
            **{key: [row[key] for row in rows] for key in rows[0] if key not in _NOT_COLUMNS},
            "trainer_state": self._state,
            "log_extra": lambda column, values: self.columns[column].extend(values),
            "log_metric": lambda name, value: self.metrics.append((name, value)),
        }


def _failed(name: str, questions: Sequence[Question], error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    tasks = sorted({str(each.row["task_id"]) for each in questions if "task_id" in each.row})
    among = f" (task {', '.join(tasks)})" if len(tasks) == 1 else f" (among {len(tasks)} tasks)" if tasks else ""
    what = f"{type(error).__name__}: {error}"
    return f"the reward function {name!r} failed{among} at {place.filename}:{place.lineno}: {what}"
