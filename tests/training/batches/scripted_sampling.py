"""Completions that are known beforehand, for TRL's trainer and for Ascent's: the same prompts get the same ones."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tests.training.batches.ragged_batches import LogProbs

from ascent.rollout.engine import Canary, EnginePlace
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Completion, EngineStats, RolloutRequest

_LONGEST = 12
_EOS = 1


class Script:
    """What is sampled. A sampler that is a little off the policy gave the log-probabilities; where `nan`, some are not
    known. Some completions of a prompt are equal."""

    def __init__(self, logps: LogProbs, *, nan: bool = False) -> None:
        self._policy_logps, self._nan = logps, nan

    def completion(self, prompt_ids: Sequence[int], index: int) -> tuple[list[int], list[float]]:
        """Token ids and the sampler's log-probabilities of one completion of a prompt."""
        ids = self._ids(prompt_ids, index)
        draw = random.Random(f"{list(prompt_ids)} {ids}")
        both = torch.tensor([[*prompt_ids, *ids]])
        own = self._policy_logps(both, torch.ones_like(both), len(ids))[0].tolist()
        logps = [each + draw.gauss(0, 0.3) for each in own]
        if self._nan and draw.random() < 0.4:
            logps[draw.randrange(len(logps))] = math.nan
        return ids, logps

    def _ids(self, prompt_ids: Sequence[int], index: int) -> list[int]:
        draw = random.Random(f"{list(prompt_ids)} {index}")
        if index and draw.random() < 0.3:
            return self._ids(prompt_ids, index - 1)
        length = draw.randint(1, _LONGEST)
        ids = draw.choices(range(2, 250), k=length)
        return ids if length == _LONGEST else [*ids[:-1], _EOS]


def score(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """A reward of the text; none to learn from where the prompt's number can be divided by three."""
    return [
        0.5 if int(prompt.partition("(")[0][5:]) % 3 == 0 else zlib.crc32(text.encode()) % 8 / 8
        for prompt, text in zip(prompts, completions, strict=True)
    ]


class ScriptedEngine:
    """An engine in the trainer's process that samples as the script says, the last first."""

    place = EnginePlace.TRAINERS_PROCESS
    dtype = "float32"

    def __init__(self, script: Script) -> None:
        self._script, self._waiting, self._version = script, list[tuple[RolloutRequest, int]](), 0

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        self._waiting += [(request, index) for request in requests for index in range(request.n)]

    def poll(self) -> list[Completion]:
        if not self._waiting:
            return []
        request, index = self._waiting.pop()
        ids, logps = self._script.completion(request.prompt_ids, index)
        reason = "stop" if ids[-1] == _EOS else "length"
        return [
            Completion(
                group_id=request.group_id,
                index=index,
                prompt_ids=request.prompt_ids,
                token_ids=as_token_ids(ids),
                logps=as_logps(logps),
                finish_reason=reason,  # type: ignore[arg-type]
                weight_version=self._version,
                submitted_at=0.0,
                finished_at=0.0,
            )
        ]

    def unfinished(self) -> int:
        return len(self._waiting)

    def needs_weights(self, *, others_do: bool = False) -> bool:
        return False

    def update_weights(self, named_tensors: Iterable[Any], version: int, canary: Canary | None = None) -> None:
        assert not self._waiting
        assert list(named_tensors)
        self._version = version

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None: ...


def follow(trainer: Any, script: Script) -> None:
    """Let TRL's trainer sample so: in the place of its call of vLLM."""

    def generate(prompt_ids: Any, images: Any, fields: Any, num_generations: int, *_: Any) -> Any:
        made = [script.completion(ids, place % num_generations) for place, ids in enumerate(prompt_ids)]
        return [ids for ids, _ in made], [logps for _, logps in made]

    trainer._generate_single_turn = generate
