"""Does `ascent regress` see what changed, and is it quiet where nothing did?

    python benchmarks/regress.py versions --other PYTHON   a record made here, compared in another environment
    python benchmarks/regress.py planted                   changes put into the engine: is each told?
    python benchmarks/regress.py quiet [--times 20]        comparisons without a change: new starts, batches, samples
    python benchmarks/regress.py chance [--times 1000]     the same over runs drawn from a pool: rates of false alarms

All ask MODEL (`--model`, by default the policy of the quickstart) with `--engine colocated` or `transformers`. PYTHON
is the interpreter of an environment with other versions (`scripts/row.sh vllm-0.23` makes one). Planted are: one number
of one weight matrix, loaded otherwise than the file has it; temperature and top-p that the engine ignores, or takes for
others; another dtype. Engines start in this process, one after another. What is printed is also written to
benchmarks/results/regress-PART-ENGINE-DTYPE.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()

from ascent.bench.regress.command import Now, compare_now, record_model  # noqa: E402
from ascent.bench.regress.compare import Comparison, compare  # noqa: E402
from ascent.bench.regress.engines import opened  # noqa: E402
from ascent.bench.regress.measure import Job, Run, measure, measure_here  # noqa: E402
from ascent.bench.regress.record import Record, make_record, read  # noqa: E402
from ascent.bench.regress.subject import EngineChoice, Subject, parse_engine  # noqa: E402
from ascent.rollout.engines.scoring import TokenScores  # noqa: E402
from ascent.types import Completion, RolloutRequest, Sampling  # noqa: E402

RESULTS = Path(__file__).parent / "results"
_OPEN = contextlib.ExitStack()  # standing engines, until the end
_OTHER_SAMPLES = 1000  # runs with such numbers draw other samples than the record's


@dataclass(frozen=True, slots=True)
class Asking:
    """What all parts are asked with."""

    model: str
    choice: EngineChoice
    repeat: int
    folder: Path

    @property
    def record(self) -> Path:
        """Where the record without a change is."""
        return self.folder / "record.jsonl"

    def now(self, measure_one: Callable[[Job], Run]) -> Now:
        """Measured in this process."""
        return Now({}, self.repeat, measure_one)

    def compared(self, measure_one: Callable[[Job], Run]) -> Comparison:
        """What is measured so against the record."""
        return compare_now(self.record, None, None, self.now(measure_one)).comparison


class Losing:
    """A Subject whose engine takes sampling settings for others."""

    def __init__(self, subject: Subject, change: Callable[[Sampling], Sampling]) -> None:
        self._subject, self._change = subject, change
        self.eos_token_ids = subject.eos_token_ids

    def sample(self, requests: Sequence[RolloutRequest]) -> list[Completion]:
        return self._subject.sample([replace(each, sampling=self._change(each.sampling)) for each in requests])

    def score(self, sequences: Sequence[Sequence[int]]) -> list[TokenScores]:
        return self._subject.score(sequences)

    def memory(self) -> int | None:
        return self._subject.memory()

    def processes(self) -> list[int]:
        return self._subject.processes()


def losing(change: Callable[[Sampling], Sampling]) -> Callable[[Job], Run]:
    """Greedy sampling stays as it is."""

    def measured(job: Job) -> Run:
        subject = standing(job.choice, job.folder)
        kept = Losing(subject, lambda sampling: sampling if sampling.temperature == 0 else change(sampling))
        return measure(kept, job.questions, job.asked, job.number)

    return measured


@functools.cache
def standing(choice: EngineChoice, folder: Path) -> Subject:
    """An engine without a change, kept for all that is asked of it."""
    return _OPEN.enter_context(opened(choice, folder))


def unchanged(job: Job) -> Run:
    """By the standing engine."""
    return measure(standing(job.choice, job.folder), job.questions, job.asked, job.number)


def temperature(value: float) -> Callable[[Job], Run]:
    """An engine that samples at this temperature where 0.7 is asked for."""
    return losing(lambda asked: replace(asked, temperature=value) if asked.temperature == 0.7 else asked)


def top_p(value: float) -> Callable[[Job], Run]:
    """An engine that samples with this top-p where 0.7 is asked for."""
    return losing(lambda asked: replace(asked, top_p=value) if asked.top_p == 0.7 else asked)


def other_weight(name: str, factor: float) -> Callable[[Job], Run]:
    """One number of a matrix, its largest, is another when it is loaded."""

    def measured(job: Job) -> Run:
        with perturbed(job.folder, name, factor) as folder:
            return measure_here(replace(job, folder=folder))

    return measured


@contextlib.contextmanager
def perturbed(folder: Path, name: str, factor: float) -> Iterator[Path]:
    """A copy of a model with the largest number of its first matrix of this name multiplied."""
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "model"
        shutil.copytree(folder, copy)
        file = next(copy.glob("*.safetensors"))
        tensors = load_file(file)
        tensor = tensors[next(each for each in tensors if name in each)]
        at = int(tensor.abs().argmax())
        tensor.view(-1)[at] *= factor
        save_file(tensors, file, {"format": "pt"})
        yield copy


def other_dtype(dtype: str) -> Callable[[Job], Run]:
    """The engine computes in another precision than its record says."""
    return lambda job: measure_here(replace(job, choice=replace(job.choice, dtype=dtype)))


# by the standing engine, before any other starts: vLLM's engines in one process share what the first to end takes away
SAMPLING_PLANTED: dict[str, Callable[[Job], Run]] = {
    "temperature 0.7 lost": temperature(1.0),
    "temperature 0.7 taken for 0.85": temperature(0.85),
    "temperature 0.7 taken for 0.75": temperature(0.75),
    "top-p 0.7 lost": top_p(1.0),
    "top-p 0.7 taken for 0.9": top_p(0.9),
}
COMPUTING_PLANTED: dict[str, Callable[[Job], Run]] = {
    "one number of the last layer's down_proj, doubled": other_weight("mlp.down_proj", 2.0),
    "one number of the first layer's q_proj, 10 % larger": other_weight("self_attn.q_proj", 1.1),
    "one number of the first layer's q_proj, 1 % larger": other_weight("self_attn.q_proj", 1.01),
    "bfloat16 instead of float32": other_dtype("bfloat16"),
    "float16 instead of float32": other_dtype("float16"),
}


def summary(found: Comparison) -> str:
    """One line."""
    changed = [each for each in found.prompts if each.verdict == "changed"]
    sampled = [
        f"{each.setting} {each.figure} p={each.tested.p:.1g}" for each in found.sampled if each.verdict == "changed"
    ]
    largest = max(each.largest for each in found.prompts)
    parts = [f"{len(changed)} of {len(found.prompts)} prompts changed", f"largest difference {largest:.2g} nats"]
    ties = sum(each.divergence is not None for each in found.prompts if each.verdict != "changed")
    parts += [f"{ties} near ties"] if ties else []
    return f"{found.verdict}: {'; '.join([*parts, *sampled])}"


def versions(asking: Asking, other: str, say: Callable[[str], None]) -> None:
    """By the command line, as a user does it."""
    source = str(Path(__file__).resolve().parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    engine = ["--engine", asking.choice.kind, "--dtype", str(asking.choice.dtype), "--repeat", str(asking.repeat)]
    for python, words in (
        (sys.executable, ["record", asking.model, "--out", str(asking.record), *engine]),
        (other, ["compare", str(asking.record), "--repeat", str(asking.repeat)]),
    ):
        command = [python, "-m", "ascent", "regress", *words]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        say(f"{done.stdout.replace(str(asking.record), asking.record.name)}(exit code {done.returncode})")


def planted(asking: Asking, say: Callable[[str], None]) -> None:
    """Each change, and the same without one."""
    record_model(asking.model, asking.record, asking.choice, asking.now(unchanged))
    say(f"no change: {summary(asking.compared(unchanged))}")
    for name, measure_one in SAMPLING_PLANTED.items():
        say(f"{name}: {summary(asking.compared(measure_one))}")
    _OPEN.close()
    for name, measure_one in COMPUTING_PLANTED.items():
        say(f"{name}: {summary(asking.compared(measure_one))}")


def quiet(asking: Asking, times: int, say: Callable[[str], None]) -> None:
    """Every comparison with an engine of its own, other samples, and prompts in other batches than the record's."""
    record_model(asking.model, asking.record, asking.choice, asking.now(measure_here))
    alarms = 0
    for turn in range(1, times + 1):

        def measured(job: Job, turn: int = turn) -> Run:
            asked = replace(job.asked, seed=job.asked.seed + turn)
            return measure_here(replace(job, asked=asked, number=job.number + turn * _OTHER_SAMPLES))

        found = asking.compared(measured)
        alarms += not found.good
        least = min(each.tested.p for each in found.sampled if each.tested.p is not None)
        say(f"comparison {turn}: {summary(found)}; smallest p of the sampling {least:.2g}")
    say(f"{alarms} alarms in {times} comparisons")


def chance(asking: Asking, times: int, say: Callable[[str], None]) -> None:
    """Records and comparisons made of runs that are drawn from a pool of one engine's."""
    pool: list[Run] = []
    job: Job | None = None

    def pooled(asked: Job) -> Run:
        nonlocal job
        job = asked
        if not pool:
            with opened(asked.choice, asked.folder) as subject:
                for number in range(8 * asking.repeat):
                    pool.append(measure(subject, asked.questions, asked.asked, number))
        return pool[asked.number]

    record_model(asking.model, asking.record, asking.choice, asking.now(pooled))
    base = read(asking.record)
    draw = random.Random(0)
    alarms, least = 0, []
    for _ in range(times):
        runs = draw.sample(pool, 2 * asking.repeat)
        one, two = (_record(base, part) for part in (runs[: asking.repeat], runs[asking.repeat :]))
        found = compare(one, two, ignored=("speed", "memory"))
        alarms += not found.good
        least.append(min(each.tested.p for each in found.sampled if each.tested.p is not None))
    ordered = sorted(least)
    say(
        f"{alarms} alarms in {times} comparisons over {len(pool)} runs; "
        f"smallest p of the sampling: least {ordered[0]:.2g}, median {statistics.median(ordered):.2g}"
    )


class _NoTexts:
    """Stands for the tokenizer: the texts of tokens don't matter here."""

    def decode(self, tokens: Sequence[int]) -> str:
        return str(tokens[0])


def _record(base: Record, runs: Sequence[Run]) -> Record:
    head = replace(base.head, runs=tuple(run.speed for run in runs))
    prompts = [prompt.prompt() for prompt in base.prompts]
    return make_record(head, prompts, [prompt.question() for prompt in base.prompts], runs, _NoTexts())


def main() -> None:
    """Run one part of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["versions", "planted", "quiet", "chance"])
    parser.add_argument("--model", default="builtin:starter")
    parser.add_argument("--engine", default="colocated")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--times", type=int)
    parser.add_argument("--other", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    quieten_transformers()
    choice = replace(parse_engine(args.engine), dtype=args.dtype)
    file = args.out / f"regress-{args.part}-{args.engine}-{args.dtype}.txt"
    lines: list[str] = []

    def say(text: str) -> None:
        print(text, flush=True)
        lines.append(text)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    with _OPEN, tempfile.TemporaryDirectory() as folder:
        asking = Asking(args.model, choice, args.repeat, Path(folder))
        if args.part == "versions":
            versions(asking, args.other, say)
        elif args.part == "planted":
            planted(asking, say)
        elif args.part == "quiet":
            quiet(asking, args.times or 20, say)
        else:
            chance(asking, args.times or 1000, say)


if __name__ == "__main__":
    main()
