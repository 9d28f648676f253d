"""One run: everything that is measured of one start of an engine."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ascent.bench.regress.engines import opened
from ascent.bench.regress.plan import PASSES, SAMPLINGS, Asked, Question, batches
from ascent.bench.regress.subject import EngineChoice, Subject
from ascent.host.others import moment
from ascent.rollout.engines.scoring import TokenScores
from ascent.types import Completion, RolloutRequest

Tokens = tuple[int, ...]
FIGURES = ("logp", "length", "ended")


@dataclass(frozen=True, slots=True)
class SampledFigure:
    """Of the completions of one prompt with one sampling setting: a figure's mean and its variance over completions."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class PromptRun:
    """What was measured of one prompt.

    `greedy` is the greedy completion of each pass. `logps` has for each pass the log-probabilities of the continuation,
    then of `reference`, in nats; `rivals` and `rival_logps` are the most likely other tokens there in the first pass.
    `sampled[setting][figure]`: `logp` is the mean log-probability of a completion's tokens as the engine reported it,
    `length` is in tokens, `ended` is 1 for a completion that ended by itself, else 0.
    """

    reference: Tokens
    greedy: tuple[Tokens, ...]
    logps: tuple[tuple[float, ...], ...]
    rivals: Tokens
    rival_logps: tuple[float, ...]
    sampled: dict[str, dict[str, SampledFigure]]

    def digests(self) -> tuple[str, ...]:
        """Of each pass's log-probabilities, bit for bit."""
        return tuple(hashlib.sha256(np.asarray(each, "<f4").tobytes()).hexdigest()[:12] for each in self.logps)


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the sampling of one run. `memory` is the most bytes that the engine took, None where it can't be seen;
    `others` is the share of the machine's processors that others used meanwhile, None where that can't be seen."""

    tokens_per_second: float
    memory: int | None
    others: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of all prompts."""

    prompts: tuple[PromptRun, ...]
    speed: Speed


@dataclass(frozen=True, slots=True)
class Job:
    """What one run needs; plain data, so that it can travel to another process."""

    choice: EngineChoice
    folder: Path
    questions: tuple[Question, ...]
    asked: Asked
    number: int = 0


def measure_here(job: Job) -> Run:
    """One run in this process, with an engine of its own. Raises InputError when the engine can't be had."""
    with opened(job.choice, job.folder) as subject:
        return measure(subject, job.questions, job.asked, job.number)


def measure(subject: Subject, questions: Sequence[Question], asked: Asked, number: int = 0) -> Run:
    """Measure an engine that is open. Runs of different `number` draw other samples; all else is alike."""
    greedy = [_greedy(subject, questions, asked, index) for index in range(len(PASSES))]
    filled = [
        question if question.reference is not None else replace(question, reference=found)
        for question, found in zip(questions, greedy[0], strict=True)
    ]
    scored = [_scored(subject, filled, asked, index) for index in range(len(PASSES))]
    sampled, speed = _sampled(subject, questions, asked, number)
    return Run(
        tuple(
            PromptRun(
                reference=question.reference or (),
                greedy=tuple(each[place] for each in greedy),
                logps=tuple(tuple(each[place].logps.tolist()) for each in scored),
                rivals=tuple(scored[0][place].rivals.tolist()),
                rival_logps=tuple(scored[0][place].rival_logps.tolist()),
                sampled=sampled[place],
            )
            for place, question in enumerate(filled)
        ),
        speed,
    )


def _greedy(subject: Subject, questions: Sequence[Question], asked: Asked, number: int) -> list[Tokens]:
    found: dict[int, Tokens] = {}
    sampling = asked.greedy(subject.eos_token_ids)
    for places in batches(len(questions), number, asked.seed):
        requests = [RolloutRequest(str(place), questions[place].prompt_ids, 1, sampling) for place in places]
        for completion in subject.sample(requests):
            found[int(completion.group_id)] = tuple(completion.token_ids.tolist())
    return [found[place] for place in range(len(questions))]


def _scored(subject: Subject, questions: Sequence[Question], asked: Asked, number: int) -> list[TokenScores]:
    """Of each continuation, then each reference, without the prompt before them."""
    found: dict[int, TokenScores] = {}
    for places in batches(len(questions), number, asked.seed):
        ends = [
            (questions[place].prompt_ids, end)
            for place in places
            for end in (questions[place].continuation_ids, questions[place].reference or ())
        ]
        scores = [
            _last(each, len(end))
            for each, (_, end) in zip(subject.score([[*prompt, *end] for prompt, end in ends]), ends, strict=True)
        ]
        for index, place in enumerate(places):
            found[place] = _joined(scores[2 * index], scores[2 * index + 1])
    return [found[place] for place in range(len(questions))]


def _last(scores: TokenScores, count: int) -> TokenScores:
    first = len(scores.logps) - count
    return TokenScores(scores.logps[first:], scores.rivals[first:], scores.rival_logps[first:])


def _joined(one: TokenScores, two: TokenScores) -> TokenScores:
    return TokenScores(
        np.concatenate([one.logps, two.logps]),
        np.concatenate([one.rivals, two.rivals]),
        np.concatenate([one.rival_logps, two.rival_logps]),
    )


def _sampled(
    subject: Subject, questions: Sequence[Question], asked: Asked, number: int
) -> tuple[list[dict[str, dict[str, SampledFigure]]], Speed]:
    figures: list[dict[str, dict[str, SampledFigure]]] = [{} for _ in questions]
    tokens, begun = 0, time.monotonic()
    before = moment(subject.processes())
    for name in SAMPLINGS:
        sampling = asked.sampling(name, subject.eos_token_ids)
        seed = asked.seed + 1_000_000 * number
        requests = [
            RolloutRequest(str(place), question.prompt_ids, asked.samples, sampling, seed + 1000 * place)
            for place, question in enumerate(questions)
        ]
        groups: list[list[Completion]] = [[] for _ in questions]
        for completion in subject.sample(requests):
            groups[int(completion.group_id)].append(completion)
            tokens += len(completion.token_ids)
        for place, group in enumerate(groups):
            figures[place][name] = _figures(sorted(group, key=lambda completion: completion.index))
    seconds = time.monotonic() - begun
    after = moment(subject.processes())
    cores = after.others_since(before) if before is not None and after is not None else None
    others = None if cores is None else cores / (os.cpu_count() or 1)
    return figures, Speed(tokens / max(seconds, 1e-9), subject.memory(), others)


def _figures(group: Sequence[Completion]) -> dict[str, SampledFigure]:
    values = {
        "logp": [float(np.mean(each.logps)) if len(each.logps) else 0.0 for each in group],
        "length": [float(len(each.token_ids)) for each in group],
        "ended": [float(each.finish_reason == "stop") for each in group],
    }
    return {name: SampledFigure(statistics.fmean(found), _variance(found)) for name, found in values.items()}


def _variance(values: Sequence[float]) -> float:
    return statistics.variance(values) if len(values) > 1 else 0.0
