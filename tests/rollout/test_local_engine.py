"""vLLM in this process, for real: sampling against transformers, and new weights that arrive whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.engine import Canary, EngineSettings, PromptTooLongError, WeightMismatchError, WeightSyncError
from ascent.types import Completion, RolloutRequest, Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
MAX_LEN = 64


class Pair:
    """An engine and the transformers model whose weights it should have."""

    def __init__(self, folder: Path, dtype: str, packed: bool) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from ascent.rollout.engines.colocated import ColocatedEngine
        from ascent.rollout.weights.in_place import InPlaceWeights
        from ascent.rollout.weights.packed_cpu import CpuWeights

        settings = EngineSettings(str(folder), dtype, MAX_LEN, kv_cache_bytes=16 * 2**20)
        self.engine = ColocatedEngine(settings, CpuWeights() if packed else InPlaceWeights())
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.float32 = dtype == "float32"
        self.version = 0

    def sample(self, *, n: int = 4, seed: int | None = 0, max_tokens: int = 16) -> list[Completion]:
        self.engine.submit(
            [RolloutRequest(f"g{g}", (10 + g, 20, 30, 40), n, Sampling(max_tokens), seed) for g in range(4)]
        )
        completions: list[Completion] = []
        while self.engine.unfinished():
            completions += self.engine.poll()
        return completions

    def differences(self) -> tuple[float, float]:
        """Mean and largest |engine - transformers| log-probability of freshly sampled tokens."""
        import torch

        found = []
        for completion in self.sample():
            ids = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
            with torch.no_grad():
                logps = self.model(ids).logits[0, len(completion.prompt_ids) - 1 : -1].float().log_softmax(-1)
            trainer = logps.gather(1, torch.tensor(completion.token_ids, dtype=torch.long)[:, None])[:, 0]
            found.append((trainer - torch.tensor(completion.logps)).abs())
        together = torch.cat(found)
        return float(together.mean()), float(together.max())

    def perturb(self, scale: float, only: str = "") -> None:
        import torch

        generator = torch.Generator().manual_seed(self.version + 1)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if only in name:
                    noise = torch.randn(parameter.shape, generator=generator) * scale
                    parameter.add_(noise.to(parameter.dtype))

    def sync(self) -> None:
        self.version += 1
        self.engine.update_weights(self.model.named_parameters(), self.version)

    def canary(self, model: Any = None) -> Canary:
        from ascent.rollout.weights.verify.canary_sequences import measure

        sequences = tuple(tuple((7 * start + 3 * place) % 250 + 2 for place in range(MAX_LEN)) for start in range(3))
        return measure(model or self.model, sequences, "float32" if self.float32 else "bfloat16")

    def assert_in_step(self) -> None:
        mean, largest = self.differences()
        if self.float32:
            assert largest <= 1e-4
        else:
            assert mean <= 0.01


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((True, "float32", True), id="tied-float32"),
        pytest.param((False, "float32", True), id="untied-float32"),
        pytest.param((True, "bfloat16", True), id="tied-bfloat16"),
        pytest.param((True, "float32", False), id="tied-float32-in-place"),
        pytest.param((False, "bfloat16", True), id="untied-bfloat16", marks=pytest.mark.slow),
        pytest.param((False, "float32", False), id="untied-float32-in-place", marks=pytest.mark.slow),
    ],
)
def pair(request: pytest.FixtureRequest, tiny_policy: Callable[..., Path]) -> Iterator[Pair]:
    from vllm import _custom_ops

    tied, dtype, packed = request.param
    packing = _custom_ops._supports_onednn
    _custom_ops._supports_onednn = packing and packed  # without packing, weights lie as they do on npu and cuda
    made = Pair(tiny_policy(tied=tied, dtype=dtype), dtype, packed)
    yield made
    made.engine.close()
    _custom_ops._supports_onednn = packing


def test_samples_as_transformers_does(pair: Pair) -> None:
    pair.sync()
    pair.assert_in_step()


def test_update_of_all_weights_arrives_and_a_skipped_one_shows(pair: Pair) -> None:
    for _ in range(5):
        pair.perturb(0.05)
        stale = pair.differences()[0]
        assert stale > 0.1, "a skipped update must be far from unnoticed"
        pair.sync()
        pair.assert_in_step()


def test_update_of_the_embedding_alone_reaches_a_tied_head(pair: Pair) -> None:
    pair.sync()
    pair.perturb(0.5, only="embed_tokens")
    assert pair.differences()[0] > 0.1, "a stale embedding or head must be far from unnoticed"
    pair.sync()
    pair.assert_in_step()


def test_the_canary_of_an_update_sees_what_the_engine_computes(pair: Pair) -> None:
    """Also sequences as long as the engine's context, of which one token is left to sample."""
    for _ in range(3):
        pair.perturb(0.05)
        pair.version += 1
        pair.engine.update_weights(pair.model.named_parameters(), pair.version, pair.canary())
    other = pair.canary()
    pair.perturb(0.1)
    try:
        with pytest.raises(WeightMismatchError, match="engine computes otherwise than the trainer"):
            pair.engine.update_weights(pair.model.named_parameters(), pair.version + 1, other)
    finally:
        pair.sync()


def test_scores_given_tokens_as_transformers_does(pair: Pair) -> None:
    """In the order in which they were given, whatever their lengths, and also after sampling."""
    from ascent.rollout.engines.scoring import score_with_model

    pair.sample(n=1)
    sequences = [[(7 * start + 3 * place) % 250 + 2 for place in range(5 + 11 * start)] for start in range(5)]
    tolerance = 1e-4 if pair.float32 else 0.3
    for mine, theirs in zip(pair.engine.score(sequences), score_with_model(pair.model, sequences, 0), strict=True):
        assert mine.logps == pytest.approx(theirs.logps, abs=tolerance)
        assert mine.rival_logps == pytest.approx(theirs.rival_logps, abs=tolerance)
        if pair.float32:
            assert mine.rivals.tolist() == theirs.rivals.tolist()
    pair.engine.submit([RolloutRequest("g", (10, 20), 1, Sampling(4), 0)])
    with pytest.raises(ValueError, match="still being sampled"):
        pair.engine.score(sequences)
    while pair.engine.unfinished():
        pair.engine.poll()


def test_a_head_that_comes_apart_from_its_embedding_is_seen(pair: Pair) -> None:
    """Every parameter arrives, and vLLM, whose head is the embedding, still computes otherwise."""
    import copy

    import torch

    if not pair.model.config.tie_word_embeddings:
        pytest.skip("nothing is tied")
    pair.sync()
    apart = copy.deepcopy(pair.model)
    head = apart.lm_head.weight.detach()
    apart.lm_head.weight = torch.nn.Parameter(head + 0.3 * torch.randn(head.shape).to(head.dtype))
    try:
        with pytest.raises(WeightMismatchError, match="doesn't take over what this training changes"):
            pair.engine.update_weights(pair.model.named_parameters(), pair.version + 1, pair.canary(apart))
    finally:
        pair.sync()


def test_same_seed_same_completions_whatever_the_batch(pair: Pair) -> None:
    def by_place(completions: list[Completion]) -> dict[Any, Any]:
        return {(c.group_id, c.index): c.token_ids.tolist() for c in completions}

    alone = by_place(pair.sample(n=2, seed=7))
    together = by_place(pair.sample(n=4, seed=7))
    assert alone == {place: together[place] for place in alone}
    assert by_place(pair.sample(n=4, seed=8)) != together


def test_completions_come_one_by_one_with_all_that_is_known(pair: Pair) -> None:
    pair.sync()
    pair.engine.stats()
    pair.engine.submit([RolloutRequest("g", (11, 12), 8, Sampling(40), 3)])
    polls = []
    while pair.engine.unfinished():
        polls.append(pair.engine.poll())
    completions = [completion for found in polls for completion in found]
    assert sorted(c.index for c in completions) == list(range(8))
    for completion in completions:
        assert completion.weight_version == pair.version
        assert completion.prompt_ids == (11, 12)
        assert len(completion.logps) == len(completion.token_ids) <= 40
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] == 1 else "length")
        assert completion.finished_at > completion.submitted_at
    stats = pair.engine.stats()
    assert stats.running == 8
    assert stats.tokens_per_second > 0
    assert 0 < stats.kv_cache_use <= 1
    assert 0 < stats.latency_p50 <= stats.latency_p95
    assert pair.engine.stats().tokens_per_second == 0, "figures are since the last report"


def test_too_long_a_prompt_is_refused_and_nothing_is_queued(pair: Pair) -> None:
    with pytest.raises(PromptTooLongError, match=r"60 tokens .* need 76 tokens, but the engine's context is 64"):
        pair.engine.submit(
            [RolloutRequest("short", (5,), 1, Sampling(16)), RolloutRequest("g", (5,) * 60, 1, Sampling(16))]
        )
    assert pair.engine.unfinished() == 0


def test_update_that_misses_a_weight_is_an_error(pair: Pair) -> None:
    some = [(name, tensor) for name, tensor in pair.model.named_parameters() if "layers.1.mlp" not in name]
    try:
        with pytest.raises(WeightSyncError, match=r"mlp.* not updated|not updated \(first: .*mlp"):
            pair.engine.update_weights(some, pair.version + 1)
    finally:
        pair.sync()


def test_no_update_while_sampling(pair: Pair) -> None:
    pair.engine.submit([RolloutRequest("g", (11, 12), 1, Sampling(4))])
    with pytest.raises(WeightSyncError, match="1 completions are still being sampled"):
        pair.sync()
    while pair.engine.unfinished():
        pair.engine.poll()


def test_what_is_broken_off_goes_on_where_it_was(pair: Pair) -> None:
    """Greedily sampled in parts: the same tokens as in one go, with the log-probabilities of each part's weights."""
    from ascent.training.step.groups import Begun, LocalGroup
    from ascent.training.step.parts import joined, requests_of

    requests = [RolloutRequest(f"g{g}", (10 + g, 20, 30, 40), 3, Sampling(24, temperature=0.0)) for g in range(4)]

    def poll_all() -> list[Completion]:
        found: list[Completion] = []
        while pair.engine.unfinished():
            found += pair.engine.poll()
        return found

    pair.engine.submit(requests)
    whole = {(each.group_id, each.index): each for each in poll_all()}
    assert pair.engine.abort() == []
    pair.engine.stats()
    parts: dict[tuple[str, int], Completion] = {}
    for turn in range(4):
        asked: dict[str, Completion] = {}
        if turn == 0:
            pair.engine.submit(requests)
        for request in requests if turn else ():
            left = tuple(parts[place] for place in sorted(parts) if place[0] == request.group_id)
            left = tuple(each for each in left if each.finish_reason == "abort")
            for each, before in requests_of(LocalGroup(request, 0, 0, begun=Begun((), left))):
                assert before is not None
                asked[each.group_id] = before
                pair.engine.submit([each])
        came = []
        for _ in range(7):
            came += pair.engine.poll()
        came += pair.engine.abort() if turn < 3 else poll_all()
        assert pair.engine.unfinished() == 0
        for part in came:
            whole_part = joined(asked[part.group_id], part) if asked else part
            parts[whole_part.group_id, whole_part.index] = whole_part
        assert {each.finish_reason for each in parts.values()} <= {"abort", "stop", "length"}
        pair.sync()  # the engine is as if nothing had been sampled
    assert parts.keys() == whole.keys()
    assert any(len(each.weight_spans) > 2 for each in parts.values())
    for place, found in parts.items():
        assert found.finish_reason == whole[place].finish_reason
        assert len(found.logps) == len(found.token_ids)
        if pair.float32:
            assert found.token_ids.tolist() == whole[place].token_ids.tolist()
            assert found.logps.tolist() == pytest.approx(whole[place].logps.tolist(), abs=1e-4)
    assert pair.engine.stats().tokens_per_second > 0


def test_starting_vllm_leaves_random_states_and_threads_alone(pair: Pair) -> None:
    """vLLM seeds all generators and takes torch.set_num_threads away when it starts; the engine puts them back."""
    import torch

    from ascent.rollout.engines.colocated import _unchanged_process

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with _unchanged_process():
        torch.manual_seed(123)
        torch.set_num_threads(1)
        torch.set_num_threads = lambda nthreads: None
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_num_threads(threads)
    assert torch.set_num_threads.__name__ == "set_num_threads", "vLLM's stand-in was left in place"
