"""Nothing that a completion passes on the training's thread walks over its tokens in Python, or makes objects of them.

`growth` counts, so that a busy machine changes nothing. Two bounds: lines of Python run for a further token, and bytes
held for it (an int32 and a float32 take 8; as Python's objects they take 60 and more).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.growth import growth

from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Completion, RolloutRequest, Sampling

pytestmark = pytest.mark.torch

NO_STEPS = 0.01
COMPLETIONS = 1  # so that what is made for each and let go again is counted too
PROMPT = tuple(range(1000, 1100))


def request(tokens: int = 8) -> RolloutRequest:
    return RolloutRequest("0-0", PROMPT, COMPLETIONS, Sampling(tokens), 7)


def completions(tokens: int) -> list[Completion]:
    ids, logps = np.arange(1000, 1000 + tokens), np.linspace(-3.0, -0.1, tokens)
    return [
        Completion("0-0", index, PROMPT, as_token_ids(ids), as_logps(logps), "stop", 0, 1.0, 2.0)
        for index in range(COMPLETIONS)
    ]


def per_token(work: Callable[[int], Callable[[], object]]) -> tuple[float, float]:
    """Steps and bytes for a further token of one completion."""
    found = growth(work)
    return found.steps / COMPLETIONS, found.held / COMPLETIONS


def batch_of(tokens: int) -> Any:
    from ascent.training.records.batch import BatchRecord
    from ascent.training.step.groups import LocalGroup

    batch = BatchRecord([{"task_id": "t"}] * COMPLETIONS, "0", 0, 1, 0)
    batch.groups, batch.completions = [LocalGroup(request(), 0, 0)], completions(tokens)
    batch.prompts, batch.texts = ["p"] * COMPLETIONS, ["c"] * COMPLETIONS
    batch.totals, batch.advantages = [0.5] * COMPLETIONS, [0.0] * COMPLETIONS
    batch.rewards = [{"r": 0.5}] * COMPLETIONS
    return batch


def test_the_count_sees_loops_calls_and_objects() -> None:
    def loop(tokens: int) -> Callable[[], object]:
        array = as_logps(np.zeros(tokens))

        def call() -> None:
            for _ in array:
                pass

        return call

    assert growth(loop).steps > 0.9
    assert growth(lambda tokens: lambda: [abs(value) for value in range(tokens)]).steps > 1.9
    assert growth(lambda tokens: lambda: tuple(map(float, range(1000, 1000 + tokens)))).held > 30
    assert growth(lambda tokens: as_logps(np.zeros(tokens)).sum) == growth(lambda tokens: lambda: None)


def test_records_and_their_file(tmp_path: Path) -> None:
    from ascent.tracking.rollouts import write_rollouts

    def work(tokens: int) -> Callable[[], object]:
        batch = batch_of(tokens)
        return lambda: write_rollouts(tmp_path / "file.parquet", batch.records("run"))

    steps, held = per_token(work)
    assert steps < NO_STEPS
    assert held < 12


def test_what_was_sampled_ahead(tmp_path: Path) -> None:
    from ascent.training.checkpoint import sampled_ahead

    def save(tokens: int) -> Callable[[], object]:
        sampled = completions(tokens)
        return lambda: sampled_ahead.save(tmp_path, 0, sampled)

    def load(tokens: int) -> Callable[[], object]:
        sampled_ahead.save(tmp_path, 0, completions(tokens))
        return lambda: sampled_ahead.load(tmp_path, 0)

    for work, most in ((save, 12), (load, 20)):
        steps, held = per_token(work)
        assert steps < NO_STEPS
        assert held < most


def test_the_way_through_the_sampler() -> None:
    """From the engine to TRL's batch: the flight, the text, the count of masked rows."""
    from ascent.training.records.batch import masked_places
    from ascent.training.step.flight import Flight
    from ascent.training.step.groups import LocalGroup

    def fly(tokens: int) -> Callable[[], object]:
        engine: Any = Engine(completions(tokens))
        return lambda: Flight(engine, [LocalGroup(request(), 0, 0)], lambda place, each: None).run()

    def mask(tokens: int) -> Callable[[], object]:
        import torch

        output = {
            "completion_mask": torch.ones(COMPLETIONS, tokens),
            "importance_sampling_ratio": torch.ones(COMPLETIONS, tokens),
        }
        return lambda: masked_places(output)

    for work in (fly, mask):
        steps, held = per_token(work)
        assert steps < NO_STEPS
        assert held < 0.5


class Engine:
    """Gives what was sampled at once."""

    def __init__(self, sampled: list[Completion]) -> None:
        self._sampled = sampled

    def submit(self, requests: Any) -> None: ...

    def needs_weights(self, *, others_do: bool = False) -> bool:
        return False

    def poll(self) -> list[Completion]:
        return self._sampled


def test_the_transformers_engine() -> None:
    from ascent.rollout.engines.transformers import TransformersEngine

    def work(tokens: int) -> Callable[[], object]:
        import torch

        class Model:
            device = torch.device("cpu")

            def generate(self, input_ids: Any, **_: Any) -> Any:
                return torch.full((input_ids.size(0), input_ids.size(1) + tokens), 7)

        @contextlib.contextmanager
        def opened() -> Iterator[Any]:
            yield Model()

        engine = TransformersEngine(opened, eos_token_ids=[1], pad_token_id=0, bos_token_id=None, max_model_len=10**6)

        def call() -> None:
            engine.submit([request(tokens)])
            assert [len(each.token_ids) for each in engine.poll()] == [tokens] * COMPLETIONS

        return call

    steps, held = per_token(work)
    assert steps < NO_STEPS
    assert held < 8


def test_vllm_s_flat_lists() -> None:
    from ascent.rollout.engines.colocated import sampled_logps

    def work(tokens: int) -> Callable[[], object]:
        flat = SimpleNamespace(logprobs=[-0.5] * tokens, start_indices=list(range(tokens)))
        return lambda: sampled_logps(flat)

    found = growth(work)
    assert found.steps < NO_STEPS
    assert found.held < 20


@pytest.mark.parametrize("short", [True, False])
def test_a_server_s_answer(short: bool) -> None:
    """Read in the thread of the connections. The long form, of a server that knows no other, takes a line a token."""
    import json

    from ascent.rollout.engines.served.jobs import Job
    from ascent.rollout.in_vllm.compat.short_answers import pack

    def work(tokens: int) -> Callable[[], object]:
        ids, at = [1000] * tokens, {"token": "token_id:1000", "logprob": -0.5, "bytes": None}
        packed = pack(ids, [{1000: SimpleNamespace(logprob=-0.5)}] * tokens)
        content = [{**at, "token": packed}] if short else [{**at, "top_logprobs": [at]}] * tokens
        choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
        raw = json.dumps({"choices": [choice]}).encode()
        return lambda: Job(request(), 0, 0.0).completion(raw, 1)

    found = growth(work)
    assert found.steps < (NO_STEPS if short else 1.1)
    assert found.held < (70 if short else 200)


def test_prompts_are_shared_by_their_group() -> None:
    from ascent.training.step.groups import group_requests

    def work(tokens: int) -> Callable[[], object]:
        prompts = [list(range(1000, 1000 + tokens)) for _ in range(8)]
        return lambda: group_requests(prompts, 8, Sampling(8), label="0")

    found = growth(work)
    assert found.steps < NO_STEPS
    assert found.held < 20, "the tuple that all share, and one that is compared with it"
