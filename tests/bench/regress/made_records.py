"""Records made of numbers, without an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ascent.bench.regress.measure import FIGURES, PromptRun, Run, SampledFigure, Speed
from ascent.bench.regress.plan import PASSES, SAMPLINGS, Asked, Question
from ascent.bench.regress.prompts import Prompt
from ascent.bench.regress.record import Head, ModelIdentity, Record, make_record
from ascent.bench.regress.subject import EngineChoice

REFERENCE = (11, 12, 13, 14)
CONTINUATION = (21, 22)
PROMPTS = 24
SPEED = Speed(1000.0, 2**30, 0.0)


class Words:
    """A tokenizer of one word a token."""

    def decode(self, tokens: Sequence[int]) -> str:
        return f"<{tokens[0]}>"


def prompt_run(**changed: Any) -> PromptRun:
    """One prompt in one run: margins of 1 nat, but for the third token of the greedy completion, a near tie."""
    logps = (-2.0, -3.0, -0.5, -0.5, -0.70000, -0.5)
    usual: dict[str, Any] = {
        "reference": REFERENCE,
        "greedy": (REFERENCE,) * len(PASSES),
        "logps": (logps,) * len(PASSES),
        "rivals": (1, 1, 101, 102, 103, 104),
        "rival_logps": (-1.0, -1.0, -1.5, -1.5, -0.70001, -1.5),
        "sampled": sampled(random.Random(0)),
    }
    return PromptRun(**{**usual, **changed})


def sampled(draw: random.Random, shift: float = 0.0) -> dict[str, dict[str, SampledFigure]]:
    """Means of four completions, drawn."""
    return {
        setting: {figure: SampledFigure(draw.gauss(0.5 + shift, 0.1), 0.04) for figure in FIGURES}
        for setting in SAMPLINGS
    }


def a_run(prompts: Sequence[PromptRun] | None = None, speed: Speed = SPEED) -> Run:
    """All prompts alike, unless they are given."""
    return Run(tuple(prompts or [prompt_run()] * PROMPTS), speed)


def a_record(runs: Sequence[Run] | None = None, **head: Any) -> Record:
    """A record of five like runs, unless they are given."""
    runs = runs or [a_run()] * 5
    count = len(runs[0].prompts)
    prompts = [Prompt(f"p{number}", f"text {number}", " and more") for number in range(count)]
    questions = [Question((1, 2, 3 + number), CONTINUATION, REFERENCE) for number in range(count)]
    usual = Head(
        model=ModelIdentity("model", "sha256:" + "a" * 64, "sha256:" + "b" * 64),
        engine=EngineChoice("transformers", dtype="float32", max_model_len=64),
        dtype="float32",
        vllm="",
        made="2026-01-01T00:00:00+00:00",
        environment={"device": "a card", "torch": "2.0"},
        asked=Asked(),
        left_out=(),
        runs=tuple(run.speed for run in runs),
    )
    return make_record(replace(usual, **head), prompts, questions, runs, Words())
