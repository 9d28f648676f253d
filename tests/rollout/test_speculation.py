"""Guessed tokens: asked for as vLLM takes it, refused where it can't be had, and without effect on what is sampled."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.guesser import Guesser
from tests.run_config import write_config

from ascent.config import load
from ascent.errors import InputError
from ascent.rollout import vllm_arguments
from ascent.rollout.engine import EngineSettings
from ascent.rollout.speculation import check_speculation, speculative_config
from ascent.types import Completion, RolloutRequest, Sampling

TinyPolicy = Callable[..., Path]
PROMPT = (40, 41, 42, 41, 42)
GUESSES, TOKENS, SAMPLES, LEAST = 2, 4, 6000, 5.0


def test_what_vllm_is_asked_for() -> None:
    settings = EngineSettings("m", "float32", 64, speculative="suffix", speculative_tokens=6)
    arguments = vllm_arguments.engine_arguments(settings)
    assert arguments["speculative_config"] == {"method": "suffix", "num_speculative_tokens": 6}
    options = vllm_arguments.command_line(arguments)
    assert json.loads(options[options.index("--speculative-config") + 1]) == arguments["speculative_config"]
    assert vllm_arguments.engine_arguments(EngineSettings("m", "float32", 64))["speculative_config"] is None
    ngram = speculative_config("ngram", 4)
    assert ngram is not None
    assert ngram["prompt_lookup_min"] <= ngram["prompt_lookup_max"]


def test_a_proposer_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_speculation(None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for method, package in (("ngram", "numba"), ("suffix", "arctic-inference")):
        with pytest.raises(InputError, match=f"needs the package {package}"):
            check_speculation(method)  # type: ignore[arg-type]


def test_a_configuration_that_contradicts_it_is_refused(tmp_path: Path) -> None:
    path = write_config(tmp_path / "c.yaml", tmp_path, tmp_path / "tasks.jsonl")
    asked = ["rollout.engine=vllm", "rollout.speculative=ngram", "trainer.seeded_sampling=false"]
    assert load(path, asked)[0].rollout.speculative_tokens == 4
    for more, said in (
        ("rollout.engine=transformers", "which only vLLM has"),
        ("trainer.min_p=0.1", "contradicts trainer.min_p"),
        ("trainer.seeded_sampling=true", "contradicts trainer.seeded_sampling"),
        ("rollout.speculative=medusa", "should be 'ngram' or 'suffix'"),
        ("rollout.speculative_tokens=0", "greater than or equal to 1"),
    ):
        with pytest.raises(InputError, match=said):
            load(path, [*asked, more])
    with pytest.raises(InputError, match="set it where that one starts"):
        load(path, [*asked, "rollout.mode=server", "rollout.server=other"])


@pytest.mark.torch
def test_a_value_for_each_token_is_that_of_its_request() -> None:
    torch = pytest.importorskip("torch")
    from ascent.rollout.in_vllm.compat.speculative_temperature import expand

    ends = torch.tensor([3, 3, 5, 6], dtype=torch.int32)  # the second request has no guess
    for dtype in (torch.float32, torch.int32, torch.int64):
        output = torch.full((6,), -7, dtype=dtype)
        expand(output, torch.tensor([2, 9, 0, 4], dtype=dtype), ends, 0, 1, 128)
        assert output.tolist() == [2, 2, 2, 1, 1, 4]


@pytest.mark.torch
def test_vllm_still_leaves_all_but_int64_unset() -> None:
    """When this fails, vLLM has mended it: `speculative_temperature` can go."""
    torch = pytest.importorskip("torch")
    import vllm._custom_ops
    from vllm.utils import cpu_triton_utils

    from ascent.rollout.in_vllm.compat import speculative_temperature

    assert vllm._custom_ops is not None  # loads the C++ functions
    kept = cpu_triton_utils._expand_kernel_impl
    if kept is speculative_temperature.expand:
        pytest.skip("vLLM's own was replaced in this process already")
    output = torch.full((2,), -7.0)
    kept(output, torch.tensor([0.5]), torch.tensor([2], dtype=torch.int32), 0, 1)
    assert output.tolist() == [-7.0, -7.0]


@pytest.fixture
def engine_with(tiny_policy: TinyPolicy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Any]]:
    """engine_with(speculative_config) -> a colocated engine."""
    from ascent.rollout.engines.colocated import ColocatedEngine

    made: list[Any] = []

    def make(config: dict[str, Any] | None) -> Any:
        monkeypatch.setattr(vllm_arguments, "speculative_config", lambda method, tokens: config)
        settings = EngineSettings(str(tiny_policy()), "float32", 64, 256, kv_cache_bytes=64 * 2**20)
        made.append(ColocatedEngine(settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


class Model:
    """The next token's distribution, exactly, by transformers; each prefix is computed once."""

    def __init__(self, folder: Path, sampling: Sampling) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder)
        self._sampling = sampling

    @functools.cache  # noqa: B019 - lives as long as its test
    def probabilities(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        import torch

        with torch.no_grad():
            logits = self._model(torch.tensor([tokens])).logits[0, -1] / self._sampling.temperature
        if self._sampling.top_k > 0:
            logits[logits < logits.topk(self._sampling.top_k).values[-1]] = -math.inf
        return tuple(logits.softmax(-1).tolist())

    def best(self, tokens: tuple[int, ...]) -> int:
        each = self.probabilities(tokens)
        return each.index(max(each))


def sample(engine: Any, sampling: Sampling) -> list[Completion]:
    engine.submit([RolloutRequest("g", PROMPT, SAMPLES, sampling)])
    found: list[Completion] = []
    while engine.unfinished():
        found += engine.poll()
    return found


def cells(model: Model, prefix: tuple[int, ...], expected: float) -> Iterator[tuple[tuple[int, ...], float]]:
    """The completions of TOKENS tokens that are expected LEAST times; and those that leave them at some token, together
    by that place. Each with how often it is expected."""
    if len(prefix) == len(PROMPT) + TOKENS:
        yield prefix, expected
        return
    rest = expected
    for token, probability in enumerate(model.probabilities(prefix)):
        if expected * probability >= LEAST:
            rest -= expected * probability
            yield from cells(model, (*prefix, token), expected * probability)
    yield prefix, rest


def surprise(model: Model, completions: list[Completion]) -> float:
    """How many standard deviations the chi-square statistic is from what the model's own samples would have (Wilson and
    Hilferty's approximation)."""
    expected = {prefix: times for prefix, times in cells(model, PROMPT, float(len(completions))) if times > 1e-9}
    seen: Counter[tuple[int, ...]] = Counter()
    for completion in completions:
        text = (*PROMPT, *completion.token_ids)
        seen[next(text[:end] for end in range(len(text), 0, -1) if text[:end] in expected)] += 1
    rare = [prefix for prefix, times in expected.items() if times < LEAST]
    parts = [(seen[prefix], times) for prefix, times in expected.items() if times >= LEAST]
    parts.append((sum(seen[prefix] for prefix in rare), max(LEAST, sum(expected[prefix] for prefix in rare))))
    statistic, freedom = sum((count - times) ** 2 / times for count, times in parts), len(parts) - 1
    assert freedom > 50
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def worst_logp(model: Model, completions: list[Completion]) -> float:
    """The largest difference of a token's log-probability from the model's."""
    differences = [
        abs(logp - math.log(model.probabilities((*PROMPT, *each.token_ids[:place]))[token]))
        for each in completions[:500]
        for place, (token, logp) in enumerate(zip(each.token_ids, each.logps, strict=True))
    ]
    return max(differences)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("top_k", [0, 6])
def test_guesses_don_t_change_what_is_sampled(
    tiny_policy: TinyPolicy, engine_with: Callable[[Any], Any], top_k: int
) -> None:
    """Distribution and log-probabilities of four tokens are the model's, three of them judged against guesses that are
    often right."""
    import torch

    sampling = Sampling(TOKENS, temperature=0.2, top_k=top_k)
    model = Model(tiny_policy(), sampling)
    Guesser.after, Guesser.guesses = staticmethod(model.best), 0
    guessing = {"method": "custom_class", "model": "tests.rollout.guesser.Guesser", "num_speculative_tokens": GUESSES}
    torch.manual_seed(0)
    plain = sample(engine_with(None), sampling)
    assert Guesser.guesses == 0
    assert abs(surprise(model, plain)) < 4
    guessed = sample(engine_with(guessing), sampling)
    assert Guesser.guesses > SAMPLES
    assert abs(surprise(model, guessed)) < 4
    assert worst_logp(model, guessed) < 1e-4


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["suffix", "ngram"])  # vLLM starts no other engine once numba is loaded
def test_vllm_s_own_proposers_don_t_either(
    tiny_policy: TinyPolicy, engine_with: Callable[[Any], Any], method: Any
) -> None:
    try:
        check_speculation(method)
    except InputError as missing:
        pytest.skip(missing.message)
    sampling = Sampling(TOKENS, temperature=0.2)
    model = Model(tiny_policy(), sampling)
    completions = sample(engine_with(speculative_config(method, GUESSES)), sampling)
    assert abs(surprise(model, completions)) < 4
    assert worst_logp(model, completions) < 1e-4
