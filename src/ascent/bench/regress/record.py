"""What is kept of several runs: a file of JSON lines, small and readable.

{"schema": "ascent.regress-record/1", "model": ..., "engine": ..., "environment": ..., "runs": [...], ...}
{"id": "code-add", "text": "def add(first, second):\\n", "greedy": [...], "logps": [...], ...}      one a prompt
{"prompts": 36, "digest": "sha256:..."}                                       of all that stands before this line
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ascent.bench.regress.measure import FIGURES, PromptRun, Run, Speed, Tokens
from ascent.bench.regress.plan import SAMPLINGS, Asked, Question
from ascent.bench.regress.prompts import Prompt
from ascent.bench.regress.subject import EngineChoice
from ascent.errors import InputError

KIND = "ascent.regress-record/"
SCHEMA = f"{KIND}1"
_LARGEST = 16 * 2**20  # bytes that are read of a file
_DIGITS = 7  # of a log-probability: float32 holds no more


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """`name` as it was given; SHA-256 of its weight files, and of all that decides what it computes."""

    name: str
    weights: str
    files: str


@dataclass(frozen=True, slots=True)
class GreedyText:
    """A greedy completion: its tokens, and the text of each."""

    ids: Tokens
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SampledRuns:
    """A figure of a prompt's samples: its mean in each run, and the variance over completions within runs."""

    means: tuple[float, ...]
    variance: float


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One prompt over all runs and passes.

    `greedy` are the different greedy completions that were seen, the reference first. `logps` are means over runs and
    passes, of the continuation, then the reference. `noise_mean` and `noise_largest` are the largest mean and largest
    single |difference| of one pass's log-probabilities from the mean of all others. `digests`: see PromptRun.
    """

    id: str
    text: str
    continuation: str
    prompt_ids: Tokens
    continuation_ids: Tokens
    greedy: tuple[GreedyText, ...]
    logps: tuple[float, ...]
    rivals: Tokens
    rival_logps: tuple[float, ...]
    noise_mean: float
    noise_largest: float
    digests: tuple[str, ...]
    sampled: dict[str, dict[str, SampledRuns]]

    @property
    def reference(self) -> Tokens:
        """The greedy completion whose log-probabilities stand in `logps`."""
        return self.greedy[0].ids

    def question(self) -> Question:
        """To ask the same again."""
        return Question(self.prompt_ids, self.continuation_ids, self.reference)

    def prompt(self) -> Prompt:
        """The texts alone."""
        return Prompt(self.id, self.text, self.continuation)


@dataclass(frozen=True, slots=True)
class Head:
    """What was recorded. `dtype` is what the engine computes in; `made` is a time in ISO form; `left_out` are ids of
    prompts that didn't fit."""

    model: ModelIdentity
    engine: EngineChoice
    dtype: str
    vllm: str
    made: str
    environment: dict[str, str]
    asked: Asked
    left_out: tuple[str, ...]
    runs: tuple[Speed, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record: its head and its prompts."""

    head: Head
    prompts: tuple[PromptRecord, ...]


_CHECKED_HEAD, _CHECKED_PROMPT = TypeAdapter(Head), TypeAdapter(PromptRecord)


def prompt_record(prompt: Prompt, question: Question, runs: Sequence[PromptRun], tokenizer: Any) -> PromptRecord:
    """One prompt of at least one run; all runs have the same reference."""
    first = runs[0]
    passes_NS = np.array([logps for run in runs for logps in run.logps], dtype=np.float64)
    seen = dict.fromkeys([first.reference, *(found for run in runs for found in run.greedy)])
    mean_N, largest_N = _left_out_differences(passes_NS)
    found = PromptRecord(
        **asdict(prompt),
        prompt_ids=question.prompt_ids,
        continuation_ids=question.continuation_ids,
        greedy=tuple(GreedyText(ids, tuple(tokenizer.decode([token]) for token in ids)) for ids in seen),
        logps=tuple(passes_NS.mean(axis=0).tolist()),
        rivals=first.rivals,
        rival_logps=first.rival_logps,
        noise_mean=float(mean_N.max()),
        noise_largest=float(largest_N.max()),
        digests=tuple(dict.fromkeys(digest for run in runs for digest in run.digests())),
        sampled={name: {figure: _over_runs(runs, name, figure) for figure in FIGURES} for name in SAMPLINGS},
    )
    return _CHECKED_PROMPT.validate_python(_short(asdict(found)))  # as a file gives it back


def _left_out_differences(passes_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and largest |pass - mean of the other passes| of each pass: both (N,); zeros for a single pass."""
    count, length = passes_NS.shape
    if count < 2 or not length:
        return np.zeros(count), np.zeros(count)
    others_NS = (passes_NS.sum(axis=0) - passes_NS) / (count - 1)
    differences_NS = np.abs(passes_NS - others_NS)
    return differences_NS.mean(axis=1), differences_NS.max(axis=1)


def _over_runs(runs: Sequence[PromptRun], name: str, figure: str) -> SampledRuns:
    found = [run.sampled[name][figure] for run in runs]
    return SampledRuns(tuple(each.mean for each in found), statistics.fmean(each.variance for each in found))


def make_record(
    head: Head, prompts: Sequence[Prompt], questions: Sequence[Question], runs: Sequence[Run], tokenizer: Any
) -> Record:
    """The record of at least one run."""
    made = [
        prompt_record(prompt, question, [run.prompts[place] for run in runs], tokenizer)
        for place, (prompt, question) in enumerate(zip(prompts, questions, strict=True))
    ]
    return Record(head, tuple(made))


def write(record: Record, file: Path) -> None:
    """Write a record by rename. Raises InputError when it has numbers that aren't finite: the engine is broken as it
    is, and nothing could be compared with it."""
    lines = [json.dumps({"schema": SCHEMA, **_short(asdict(record.head))}, ensure_ascii=False)]
    for prompt in record.prompts:
        try:
            lines.append(json.dumps(_short(asdict(prompt)), ensure_ascii=False, allow_nan=False))
        except ValueError as error:
            raise InputError(
                f"prompt {prompt.id}: the engine gives log-probabilities that are not finite numbers",
                "Look at the model and its dtype first: ascent generate MODEL",
            ) from error
    body = "".join(f"{line}\n" for line in lines)
    end = {"prompts": len(record.prompts), "digest": _digest(body)}
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(body + json.dumps(end) + "\n", encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise InputError(f"{file}: can't be written: {error.strerror}") from error


def _short(content: Any) -> Any:
    """The same with no more digits than count."""
    if isinstance(content, dict):
        return {name: _short(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_short(value) for value in content]
    return float(f"{content:.{_DIGITS}g}") if isinstance(content, float) else content


def read(file: Path) -> Record:
    """Read a record. Raises InputError for what isn't a whole one of this version."""
    try:
        if file.stat().st_size > _LARGEST:
            raise InputError(f"{file}: {file.stat().st_size} bytes, which no record of ascent regress has")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a record of ascent regress (not UTF-8 text)") from error
    lines = text.removesuffix("\n").split("\n")  # splitlines would also cut where a prompt has other line ends
    _check_schema(file, _line(lines[0]))
    _check_whole(file, lines)
    try:
        head = _CHECKED_HEAD.validate_python(_without_schema(_line(lines[0])))
        prompts = [_CHECKED_PROMPT.validate_python(_line(line)) for line in lines[1:-1]]
        return _checked(Record(head, tuple(prompts)))
    except (ValidationError, ValueError) as error:
        raise InputError(f"{file}: not what {SCHEMA} says: {error}") from error


def _line(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _without_schema(head: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (head or {}).items() if name != "schema"}


def _check_schema(file: Path, head: dict[str, Any] | None) -> None:
    schema = head.get("schema") if head else None
    if not isinstance(schema, str) or not schema.startswith(KIND):
        raise InputError(f"{file}: not a record of ascent regress", "Make one: ascent regress record MODEL --out FILE")
    if schema != SCHEMA:
        raise InputError(
            f"{file}: its schema is {schema}, this version of Ascent reads {SCHEMA}",
            "Compare with the version of Ascent that made it, or record the old versions again with this one.",
        )


def _check_whole(file: Path, lines: Sequence[str]) -> None:
    end = _line(lines[-1]) or {}
    if set(end) != {"prompts", "digest"} or end["prompts"] != len(lines) - 2:
        raise InputError(
            f"{file}: the record was cut off: its last line should be its end, and is line {len(lines)}",
            "Take it from where it was kept again, or record it anew with the old versions.",
        )
    if end["digest"] != _digest("".join(f"{line}\n" for line in lines[:-1])):
        raise InputError(
            f"{file}: its content is not what was recorded: the digest in its last line is of another one",
            "A record is never edited. Take it from where it was kept, or record it anew with the old versions.",
        )


def _checked(record: Record) -> Record:
    """Raises ValueError for parts that don't belong together."""
    if not record.prompts or not record.head.runs:
        raise ValueError("no prompts or no runs in it")
    head = record.head
    shown = [head.model.name, head.dtype, head.vllm, head.made, *head.left_out, *(each.id for each in record.prompts)]
    if not all(map(str.isprintable, (*shown, *head.environment, *head.environment.values()))):
        raise ValueError("names with control characters, which a terminal would obey")
    for prompt in record.prompts:
        expected = len(prompt.continuation_ids) + len(prompt.reference) if prompt.greedy else -1
        if not expected == len(prompt.logps) == len(prompt.rivals) == len(prompt.rival_logps):
            raise ValueError(f"prompt {prompt.id}: log-probabilities of {len(prompt.logps)} tokens, not {expected}")
    return record


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
