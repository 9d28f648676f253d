"""What `ascent regress` does: measures now, keeps a record or compares with one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ascent.bench.regress.compare import compare
from ascent.bench.regress.engines import usual_dtype
from ascent.bench.regress.measure import Job
from ascent.bench.regress.plan import Asked, Fitting, question_of, questions_of
from ascent.bench.regress.prompts import read_prompts
from ascent.bench.regress.record import Head, ModelIdentity, Record, make_record, read, write
from ascent.bench.regress.report import Compared, Recorded
from ascent.bench.regress.runs import Measure, measure_in_child, several_runs
from ascent.bench.regress.service import StandingService
from ascent.bench.regress.subject import DTYPES, EngineChoice
from ascent.errors import InputError
from ascent.models.digests import model_digest, weights_digest
from ascent.models.folder import load_tokenizer, longest_context, model_folder


@dataclass(frozen=True, slots=True)
class Now:
    """How to measure now. `environment` is of this process, for the record."""

    environment: Mapping[str, str]
    repeat: int = 5
    measure_one: Measure = measure_in_child


def record_model(
    name: str, out: Path, choice: EngineChoice, now: Now, *, prompts: Path | None = None, asked: Asked | None = None
) -> Recorded:
    """Measure a model and write its record. Raises InputError."""
    asked = asked or Asked()
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")
    texts = read_prompts(prompts)
    folder = model_folder(name)
    tokenizer = load_tokenizer(folder, trust_remote_code=choice.trust_remote_code)
    fitting = questions_of(texts, tokenizer, asked, _context(choice, folder))
    choice = _settled(choice, fitting, asked)
    record = _measured(
        ModelIdentity(name, weights_digest(folder), model_digest(folder)),
        folder,
        choice,
        now,
        asked,
        fitting,
        tokenizer,
    )
    write(record, out)
    return Recorded(out, out.stat().st_size, record)


def compare_now(
    file: Path,
    name: str | None,
    choice: EngineChoice | None,
    now: Now,
    *,
    trust_remote_code: bool = False,
    other_weights: bool = False,
    ignored: Sequence[str] = (),
    everything: bool = False,
) -> Compared:
    """Measure what a record asks and compare. The engine is the record's where no `choice` is given, and computes in
    the record's dtype unless the choice has one. Raises InputError."""
    old = read(file)
    name = name or old.head.model.name
    folder = model_folder(name)
    model = ModelIdentity(name, weights_digest(folder), model_digest(folder))
    _check_model(file, old.head.model, model, other_weights=other_weights)
    questions = tuple(prompt.question() for prompt in old.prompts)
    longest = max(question.tokens(old.head.asked) for question in questions)
    choice = replace(_as_recorded(file, old.head, choice, longest), trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, trust_remote_code=choice.trust_remote_code)
    tokenized = {prompt.id: question_of(prompt.prompt(), tokenizer) for prompt in old.prompts}
    fitting = Fitting(tuple(prompt.prompt() for prompt in old.prompts), questions, old.head.left_out)
    if (context := _context(choice, folder)) < longest:
        raise InputError(f"the recorded prompts need a context of {longest} tokens, but the engine has {context}")
    new = _measured(model, folder, choice, now, old.head.asked, fitting, tokenizer)
    return Compared(compare(old, new, tokenized, ignored), everything)


def compare_files(
    one: Path, two: Path, *, other_weights: bool = False, ignored: Sequence[str] = (), everything: bool = False
) -> Compared:
    """Compare two records. Raises InputError."""
    old, new = read(one), read(two)
    _check_model(one, old.head.model, new.head.model, other_weights=other_weights)
    return Compared(compare(old, new, None, ignored), everything)


def is_record(path: str) -> bool:
    """Whether the second argument of `compare` means a file; a model is a folder or a name."""
    return Path(path).is_file()


def _check_model(file: Path, recorded: ModelIdentity, other: ModelIdentity, *, other_weights: bool) -> None:
    if recorded.weights != other.weights and not other_weights:
        raise InputError(
            f"{file} is a record of another model: {recorded.name} had weights {_start(recorded.weights)}, "
            f"{other.name} has {_start(other.weights)}",
            "Give the recorded model, or --other-weights to compare outputs of different weights all the same.",
        )
    if recorded.weights == other.weights and recorded.files != other.files:
        print(
            f"note: {other.name} has the recorded weights, but its config or tokenizer files are others",
            file=sys.stderr,
        )


def _start(digest: str) -> str:
    return digest[: len("sha256:") + 12]


def _context(choice: EngineChoice, folder: Path) -> int:
    """The most tokens that the engine has room for."""
    own = longest_context(folder, trust_remote_code=choice.trust_remote_code)
    if choice.kind != "service":
        return own
    with StandingService.found(choice, ()) as service:
        service.check_model(folder)
        return min(own, *(status.max_model_len for status in service.heard()))


def _settled(choice: EngineChoice, fitting: Fitting, asked: Asked) -> EngineChoice:
    """With what it computes in and its context, where these are ours to choose."""
    if choice.kind == "service":
        return choice
    longest = max(question.tokens(asked) for question in fitting.questions)
    return replace(choice, dtype=choice.dtype or usual_dtype(), max_model_len=longest)


def _as_recorded(file: Path, head: Head, choice: EngineChoice | None, longest: int) -> EngineChoice:
    """The choice, with what it leaves open as in the record, and a context of `longest` tokens.

    Raises InputError for a record of servers at some address: they would get the user's API key because a file says so.
    """
    if choice is None and head.engine.kind == "service" and "://" in (head.engine.service or ""):
        raise InputError(
            f"{file} is a record of servers at {head.engine.service}",
            "If you trust them with your API key, name them: --engine service:URL",
        )
    choice = choice or head.engine
    if choice.kind == "service":
        return choice
    recorded = head.dtype if head.dtype in DTYPES else None
    return replace(choice, dtype=choice.dtype or recorded or usual_dtype(), max_model_len=longest)


def _measured(
    model: ModelIdentity,
    folder: Path,
    choice: EngineChoice,
    now: Now,
    asked: Asked,
    fitting: Fitting,
    tokenizer: Any,
) -> Record:
    if now.repeat < 1:
        raise InputError(f"--repeat {now.repeat}: expected at least 1")
    made = datetime.now(UTC).isoformat(timespec="seconds")
    job = Job(choice, folder, fitting.questions, asked)
    runs = several_runs(job, now.repeat, lambda text: print(text, file=sys.stderr, flush=True), now.measure_one)
    dtype, vllm = _computes(choice)
    head = Head(
        model=model,
        engine=choice,
        dtype=dtype,
        vllm=vllm,
        made=made,
        environment=dict(now.environment),
        asked=asked,
        left_out=fitting.left_out,
        runs=tuple(run.speed for run in runs),
    )
    return make_record(head, fitting.prompts, fitting.questions, runs, tokenizer)


def _computes(choice: EngineChoice) -> tuple[str, str]:
    """The dtype of an engine, and the version of its vLLM ("" for transformers)."""
    if choice.kind == "service":
        with StandingService.found(choice, ()) as service:
            return service.dtype, ", ".join(sorted({status.vllm for status in service.heard()}))
    if choice.kind == "transformers":
        return choice.dtype or usual_dtype(), ""
    from ascent.rollout.platform import installed_vllm

    return choice.dtype or usual_dtype(), installed_vllm()
