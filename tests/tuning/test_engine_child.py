"""The child with vLLM in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ascent.rollout.engine import EngineSettings
from ascent.tuning.probe import Group, Limits, Probe, TrialError
from ascent.tuning.trial import EngineChild
from ascent.types import Sampling

pytestmark = [pytest.mark.slow, pytest.mark.torch]

# prompts longer than a block, so that the completions of a group find theirs in the cache
GROUPS = tuple(Group(tuple(range(5, 85 + place)), (3, 9, 14, 20)) for place in range(4))


def settings(policy: Path) -> EngineSettings:
    """A small engine."""
    return EngineSettings(str(policy), "float32", 128, 16, 512, kv_cache_bytes=32 * 2**20, block_size=32, threads=1)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory, tiny_policy: Callable[..., Path]) -> Iterator[EngineChild]:
    """One engine for all tests."""
    with EngineChild(tmp_path_factory.mktemp("child") / "engines.log") as made:
        assert made.look().kind == "cpu"
        made.open(settings(tiny_policy()))
        yield made


def test_completions_have_their_lengths(child: EngineChild) -> None:
    found = child.probe(Probe(GROUPS))
    assert found.lengths == tuple(group.lengths for group in GROUPS)
    assert (found.sequences, found.tokens) == (16, 4 * 46)
    assert found.prompt_tokens == 4 * sum(len(group.prompt_ids) for group in GROUPS)
    assert found.peak_bytes > 2**27
    assert not found.cut


def test_prompts_are_forgotten_between_probes(child: EngineChild) -> None:
    first, second = (child.probe(Probe(GROUPS)).stats.prefix_hit_rate for _ in range(2))
    assert 0.1 < first < 0.9  # within a group
    assert second == first


def test_limits_are_kept_and_taken_back(child: EngineChild) -> None:
    assert child.probe(Probe(GROUPS, limits=Limits(3, 512))).stats.running == 3
    assert child.probe(Probe(GROUPS)).stats.running == 16
    assert child.probe(Probe(GROUPS, limits=Limits(16, 128))).stats.running <= 16


def test_waves_wait_for_their_last(child: EngineChild) -> None:
    found = child.probe(Probe(GROUPS, at_once=4, steps=True))
    assert found.stats.running == 4
    assert sum(1 for running, _ in found.steps if running == 4) >= 4 * 3
    assert found.sequences == 16


def test_natural_lengths_end_where_the_policy_ends(child: EngineChild) -> None:
    sampling = Sampling(None, stop_token_ids=tuple(range(2, 100)))
    found = child.probe(Probe(GROUPS, sampling, natural=True))
    lengths = [length for group in found.lengths for length in group]
    assert all(1 <= length <= most for length, most in zip(lengths, [3, 9, 14, 20] * 4, strict=True))
    assert sum(lengths) < 4 * 46


def test_a_probe_is_broken_off(child: EngineChild) -> None:
    long = tuple(replace(group, lengths=(40,) * 4) for group in GROUPS)
    found = child.probe(Probe(long, until=0.02))
    assert found.cut
    assert 0 <= found.tokens < 16 * 40
    assert child.probe(Probe(GROUPS)).tokens == 4 * 46  # and the engine is as before


def test_seeds_repeat(child: EngineChild) -> None:
    sampling = Sampling(None, stop_token_ids=tuple(range(2, 60)))
    probe = Probe(GROUPS, sampling, natural=True, seeded=True)
    assert child.probe(probe).lengths == child.probe(probe).lengths


def test_settings_that_vllm_refuses(tmp_path: Path, tiny_policy: Callable[..., Path]) -> None:
    with EngineChild(tmp_path / "engines.log") as made, pytest.raises(TrialError) as caught:
        made.open(replace(settings(tiny_policy()), max_num_batched_tokens=8, max_model_len=4, max_num_seqs=64))
    assert caught.value.why == "refused"
    assert "max_num_batched_tokens" in caught.value.text
