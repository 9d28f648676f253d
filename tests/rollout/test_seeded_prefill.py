"""Seeded sampling when a prompt is computed in several engine steps, and when requests are preempted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascent.rollout.engine import EngineSettings
from ascent.types import RolloutRequest, Sampling

pytestmark = pytest.mark.torch
MAX_LEN = 256  # also what vLLM computes at most in one step
BLOCKS, BLOCK = 6, 128  # of the cache (one stays empty), and the tokens of each, which is vLLM's choice on CPU
Engine = Any
Places = dict[tuple[str, int], tuple[int, ...]]


def _requests(groups: int, n: int, prompt: int, tokens: int) -> list[RolloutRequest]:
    return [
        RolloutRequest(
            f"g{g}", tuple((7 * g + 3 * place) % 250 + 2 for place in range(prompt)), n, Sampling(tokens), 1000 * g + 5
        )
        for g in range(groups)
    ]


def _sample(engine: Engine, requests: list[RolloutRequest], *, one_by_one: bool = False) -> Places:
    found: Places = {}
    for batch in [[request] for request in requests] if one_by_one else [requests]:
        engine.submit(batch)
        while engine.unfinished():
            found |= {(each.group_id, each.index): tuple(each.token_ids.tolist()) for each in engine.poll()}
    return found


@pytest.fixture(scope="module")
def engine(tiny_policy: Callable[..., Path]) -> Iterator[Engine]:
    from ascent.rollout.engines.colocated import ColocatedEngine

    cache = BLOCKS * BLOCK * 2 * 2 * 64 * 4  # layers, keys and values, width, bytes of a float32
    settings = EngineSettings(
        str(tiny_policy()), "float32", MAX_LEN, max_num_batched_tokens=1, prefix_caching=False, kv_cache_bytes=cache
    )
    made = ColocatedEngine(settings)
    yield made
    made.close()


def test_prompts_beyond_a_steps_budget_give_the_completions_of_their_seeds(engine: Engine) -> None:
    """Several prompts of 90 tokens at once exceed a step: some are cut. Alone, none is."""
    requests = _requests(groups=8, n=1, prompt=90, tokens=12)
    assert _sample(engine, requests) == _sample(engine, requests, one_by_one=True)


def test_preempted_requests_give_the_completions_of_their_seeds(engine: Engine) -> None:
    """Five requests fill the cache; some are thrown out while they decode, and computed again in several steps."""
    requests = _requests(groups=8, n=1, prompt=110, tokens=60)
    alone = _sample(engine, requests, one_by_one=True)
    engine.stats()
    assert _sample(engine, requests) == alone
    assert engine.stats().preemptions > 0, "nothing was preempted: the test shows nothing"


def test_the_fault_is_still_there(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, vLLM or torch has mended it: take `in_vllm/compat/seeded_prefill.py` away."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    from ascent.rollout.in_vllm.compat.seeded_prefill import mend

    mended: Any = InputBatch.add_request
    monkeypatch.setattr(InputBatch, "add_request", mended.__wrapped__)
    runner = engine._engine.model_executor.driver_worker.model_runner
    if runner.device.type != "cpu":
        pytest.skip("other devices' generators have an offset")
    engine.submit(_requests(groups=4, n=1, prompt=90, tokens=2))
    with pytest.raises(RuntimeError, match="does not use offset"):
        engine.poll()
    engine._engine.abort_request(list(engine._pending), internal=False)
    engine._pending.clear()
    mend()
    assert getattr(InputBatch.add_request, "__wrapped__", None) is mended.__wrapped__


def test_a_draw_is_taken_back_whatever_it_consumed() -> None:
    import torch

    from ascent.rollout.in_vllm.compat.seeded_prefill import StateGenerator

    plain = torch.Generator().manual_seed(3)
    generator = StateGenerator.like(plain)
    for width in (1, 1000, 7):  # 1000 is no multiple of what CUDA's offset would move by
        generator.keep()
        first = torch.empty(width).exponential_(generator=generator)
        generator.set_offset(generator.get_offset() - 4)
        assert torch.equal(torch.empty(width).exponential_(generator=generator), first)
        assert torch.equal(torch.empty(width).exponential_(generator=plain), first)


def test_mending_twice_wraps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_input_batch import InputBatch

    from ascent.rollout.in_vllm.compat import seeded_prefill

    monkeypatch.setattr(InputBatch, "add_request", lambda self, request: request)
    seeded_prefill.mend()
    once = _add_request_of(InputBatch)
    seeded_prefill.mend()
    assert _add_request_of(InputBatch) is once
    unseeded = SimpleNamespace(generator=None)
    assert once(None, unseeded) is unseeded
    assert unseeded.generator is None


def test_every_process_of_vllm_is_mended_by_the_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_input_batch import InputBatch

    from ascent.rollout.in_vllm import plugin

    plain = _add_request_of(InputBatch)
    plain = getattr(plain, "__wrapped__", plain)
    monkeypatch.setattr(InputBatch, "add_request", plain)
    plugin.register()
    assert _add_request_of(InputBatch).__wrapped__ is plain


def _add_request_of(batch: Any) -> Any:
    return batch.add_request
