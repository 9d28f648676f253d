"""What do the tokens of a generation cost on their way from the sampler to the disk, apart from sampling and training?

    python benchmarks/token_costs.py [--completions 512] [--tokens 8192] [--rounds 3] [--json]

Each place that a completion passes, timed twice on the same random tokens: as Ascent does it, and the plain way, with
tuples of Python's numbers (`asdict`, `json`, one line less at each attempt to parse). The plain way is timed on an
eighth of the completions and multiplied by eight. Prints medians in seconds of CPU time, which a busy neighbour changes
little, for the whole generation; for programs in prose, for one completion. Needs the training packages, no engine and
no accelerator.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

_SHARE = 8  # the plain way is timed on one of so many completions
_PROSE = (30_000, 100_000, 1_000_000)  # characters


@dataclass(frozen=True)
class Place:
    """Where tokens pass. `now` and `plain` take what they are given of the generation; `thread`: whose time it is."""

    name: str
    thread: str
    given: Sequence[Any]
    now: Callable[[Sequence[Any]], object]
    plain_given: Sequence[Any]
    plain: Callable[[Sequence[Any]], object] | None
    times: int = 1  # `given` so often makes a generation


def places(completions: int, tokens: int, folder: Path) -> list[Place]:
    """All places, over a generation of random tokens."""
    from ascent.training.checkpoint import sampled_ahead
    from ascent.types import RolloutRequest, Sampling

    request = RolloutRequest("0-0", tuple(range(500)), 1, Sampling(tokens))
    share = completions // _SHARE
    raw = [answer(random_tokens(tokens, seed), short=True) for seed in range(completions)]
    sampled = [random_tokens(tokens, seed) for seed in range(share)]
    long = [answer(each, short=False) for each in sampled]
    arrays = [completion_of(request, each) for each in raw]
    tuples = [as_tuples(each) for each in arrays[:share]]
    records, plain_records = [record_of(each) for each in arrays], [record_of(each) for each in tuples]
    return [
        Place(
            "a server makes its answers",
            "the server's event loop",
            sampled,
            lambda given: [answer(each, short=True) for each in given],
            sampled,
            lambda given: [answer(each, short=False) for each in given],
            times=_SHARE,
        ),
        Place(
            "they are read",
            "of the connections",
            raw,
            lambda given: [completion_of(request, each) for each in given],
            long,
            lambda given: [plain_answer(each) for each in given],
        ),
        Place(
            "vLLM's log-probabilities are gathered in the trainer's process",
            "training",
            [flat_of(each) for each in arrays],
            lambda given: [gathered(each) for each in given],
            [dicts_of(each) for each in tuples],
            lambda given: [tuple(at[token].logprob for token, at in each) for each in given],
        ),
        Place(
            "the generation is kept as a rollout file",
            "beside the training",
            records,
            lambda given: write(folder / "now.parquet", given),
            plain_records,
            lambda given: plain_write(folder / "plain.parquet", given),
        ),
        Place(
            "what was sampled ahead is kept with a checkpoint",
            "training",
            arrays,
            lambda given: sampled_ahead.save(folder, 0, given),
            tuples,
            lambda given: (folder / "plain.json").write_text(json.dumps([asdict(each) for each in given], indent=1)),
        ),
        Place(
            "and read when it is resumed",
            "training",
            [folder],
            lambda given: sampled_ahead.load(given[0], 0),
            [folder / "plain.json"],
            lambda given: [tuple(row["token_ids"]) + tuple(row["logps"]) for row in json.loads(given[0].read_text())],
        ),
        Place(
            "lists are made for TRL",
            "training",
            arrays,
            lambda given: [(each.token_ids.tolist(), each.logps.tolist()) for each in given],
            tuples,
            lambda given: [(list(each.token_ids), list(each.logps)) for each in given],
        ),
        Place(
            "TRL makes tensors of them",
            "training",
            [(each.token_ids.tolist(), each.logps.tolist()) for each in arrays],
            lambda given: [trl_tensors(*each) for each in given],
            [],
            None,
        ),
    ]


def random_tokens(tokens: int, seed: int) -> tuple[list[int], list[Any]]:
    """Token ids, and vLLM's dict of each with its log-probability."""
    from vllm.logprobs import Logprob

    draw = np.random.default_rng(seed)
    ids = np.minimum(draw.zipf(1.3, tokens), 150_000).tolist()
    logps = (-draw.exponential(0.5, tokens)).astype(np.float32).tolist()
    return ids, [{token: Logprob(logp, 1, None)} for token, logp in zip(ids, logps, strict=True)]


def answer(sampled: tuple[list[int], list[Any]], *, short: bool) -> bytes:
    """What vLLM 0.31's server makes of it."""
    from fastapi.responses import JSONResponse
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateResponse, GenerateResponseChoice
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens

    from ascent.rollout.in_vllm.compat import short_answers

    ids, dicts = sampled
    with short_answers.answering(short=short):
        logprobs = ServingTokens._create_tokens_logprobs(None, ids, dicts, 0)  # type: ignore[arg-type]
    choice = GenerateResponseChoice(index=0, logprobs=logprobs, finish_reason="stop", token_ids=ids)
    return bytes(JSONResponse(content=GenerateResponse(choices=[choice]).model_dump()).body)


def completion_of(request: Any, raw: bytes) -> Any:
    """What the served engine makes of an answer."""
    from ascent.rollout.engines.served.jobs import Job

    return Job(request, 0, 0.0).completion(raw, 1)


def plain_answer(raw: bytes) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The same from JSON's own objects."""
    choice = json.loads(raw)["choices"][0]
    return tuple(choice["token_ids"]), tuple(token["logprob"] for token in choice["logprobs"]["content"])


def as_tuples(completion: Any) -> Any:
    """The completion with tuples in the place of arrays."""
    token_ids, logps = tuple(completion.token_ids.tolist()), tuple(completion.logps.tolist())
    return replace(completion, token_ids=token_ids, logps=logps)


def flat_of(completion: Any) -> Any:
    """vLLM's flat lists of a completion's log-probabilities."""
    from vllm.logprobs import FlatLogprobs

    places = range(len(completion.token_ids))
    return FlatLogprobs(
        start_indices=list(places),
        end_indices=[place + 1 for place in places],
        token_ids=completion.token_ids.tolist(),
        logprobs=completion.logps.tolist(),
    )


def dicts_of(completion: Any) -> list[Any]:
    """Each token with vLLM's dict of it, which is what vLLM makes unless flat lists are asked for."""
    from vllm.logprobs import Logprob

    both = zip(completion.token_ids, completion.logps, strict=True)
    return [(token, {token: Logprob(logp, 1, None)}) for token, logp in both]


def gathered(flat: Any) -> Any:
    """What the colocated engine makes of vLLM's flat lists."""
    from ascent.rollout.engines.colocated import sampled_logps

    return sampled_logps(flat)


def record_of(completion: Any) -> Any:
    """A completion as it is kept."""
    from ascent.tracking.rollouts import RolloutRecord

    text = "some words of an answer\n" * (4 * len(completion.token_ids) // 24)
    fields: dict[str, Any] = {
        **dict.fromkeys(("sample_id", "group_id", "task_id", "finish_reason", "sandbox_level"), "some"),
        **dict.fromkeys(("generation", "step", "rank", "index", "weight_version"), 1),
        **dict.fromkeys(("reward", "advantage", "sandbox_seconds", "sample_seconds"), 0.5),
        **dict.fromkeys(("evaluation", "error", "dropped_why")),
        **dict.fromkeys(("compiled", "kept"), True),
        "rewards": {"code_reward": 0.5},
        "parts": {"compile": 0.1, "tests": 0.4},
        "prompt": text[:2000],
        "completion": text,
        "program": text[:2000],
        "prompt_ids": completion.prompt_ids,
        "completion_ids": completion.token_ids,
        "logps": completion.logps,
        "outcomes": ["passed"] * 10,
    }
    return RolloutRecord(**fields)


def write(path: Path, records: Sequence[Any]) -> None:
    """A rollout file as a run writes it."""
    from ascent.tracking.rollouts import write_rollouts

    write_rollouts(path, records)


def plain_write(path: Path, records: Sequence[Any]) -> None:
    """The same file by way of a dict for each record."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ascent.tracking.rollouts import schema

    rows = [asdict(record) for record in records]
    for row in rows:
        row |= {name: list(row[name].items()) for name in ("rewards", "parts")}
    pq.write_table(pa.Table.from_pylist(rows, schema=schema()), path, compression="zstd")


def trl_tensors(token_ids: list[int], logps: list[float]) -> object:
    """What TRL 1.16 does with each list (`_generate_and_score_completions`)."""
    import torch

    return torch.tensor(token_ids), torch.tensor([float("nan") if x is None else x for x in logps])


def prose(characters: int) -> str:
    """A short program, and unfenced talk about it."""
    program = "def add(a, b):\n    total = a + b\n    return total\n\n"
    talk = "This adds both numbers, since that is what was asked for.\nNote that it works for floats too.\n"
    return program + talk * (characters // len(talk))


def plain_program(text: str) -> str:
    """The longest program at the beginning of a text, by leaving out a line at a time."""
    lines = text.split("\n")
    for end in range(len(lines), 0, -1):
        try:
            ast.parse("\n".join(lines[:end]))
            return "\n".join(lines[:end])
        except SyntaxError:
            pass
    return ""


def seconds(call: Callable[[], object], rounds: int) -> float:
    """The median of so many calls, CPU time."""
    found = []
    for _ in range(rounds):
        started = time.process_time()
        call()
        found.append(time.process_time() - started)
    return statistics.median(found)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--completions", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    from ascent.rewards.extract import extract_program

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for place in places(args.completions, args.tokens, Path(scratch)):
            place.now(place.given[:1])  # what is imported or allocated once is no cost of tokens
            now = place.times * seconds(lambda place=place: place.now(place.given), args.rounds)  # type: ignore[misc]
            plain = None
            if place.plain is not None:
                once = seconds(lambda place=place: place.plain(place.plain_given), 1)  # type: ignore[misc]
                plain = once * _SHARE
            rows.append({"place": place.name, "thread": place.thread, "plain": plain, "now": now})
    for characters in _PROSE:
        text = prose(characters)
        now = seconds(lambda text=text: extract_program(text), args.rounds)  # type: ignore[misc]
        plain = seconds(lambda text=text: plain_program(text), 1) if characters < 1_000_000 else None  # type: ignore[misc]
        name = f"a program is found in {characters // 1000} kB of prose (one completion)"
        rows.append({"place": name, "thread": "training", "plain": plain, "now": now})
    print_result(rows, as_json=args.json)


def print_result(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """A table in Markdown, or JSON."""
    if as_json:
        print(json.dumps(list(rows)))
        return
    print("| | thread | plain way, CPU s | now, CPU s |\n|---|---|---|---|")
    for row in rows:
        plain = "" if row["plain"] is None else f"{row['plain']:.3g}"
        print(f"| {row['place']} | {row['thread']} | {plain} | {row['now']:.2g} |")


if __name__ == "__main__":
    main()
