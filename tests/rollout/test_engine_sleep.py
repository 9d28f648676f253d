"""When a colocated engine sleeps and wakes: the order of what vLLM is asked for. (That vLLM itself wakes up as it was
is checked on a card, by `ascent selftest`: its CPU platform has no sleep mode.)"""

from __future__ import annotations

from typing import Any

import pytest

from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings
from ascent.rollout.engines.colocated import ColocatedEngine
from ascent.types import RolloutRequest, Sampling

pytestmark = pytest.mark.torch


class Asked:
    """Remembers what an engine asks of vLLM, and answers nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.vllm_config = self.model_executor = self

    def __getattr__(self, name: str) -> Any:
        if name in ("driver_worker", "model_runner", "model", "model_config"):
            return self
        return lambda *args, **keywords: self.calls.append(f"{name}{keywords or ''}")

    def load(self, *_: Any) -> None:
        self.calls.append("load weights")


def engine(asked: Asked, *, sleeps: bool) -> ColocatedEngine:
    """One whose vLLM is `asked`."""
    made = ColocatedEngine.__new__(ColocatedEngine)
    made._settings = EngineSettings("none", "float32", 64, sleeps=sleeps)
    made._weights, made._engine, made._pending = asked, asked, {}
    made._sequence, made._version, made._asleep = 0, 0, False
    return made


def test_it_sleeps_once_and_wakes_before_anything_is_asked() -> None:
    asked = Asked()
    made = engine(asked, sleeps=True)
    made.rest()
    made.rest()
    assert asked.calls == ["reset_prefix_cache", "sleep{'level': 1}"]
    made.update_weights([], 1)
    assert asked.calls[2:5] == ["wake_up", "load weights", "reset_prefix_cache"]
    made.rest()
    made.submit([RolloutRequest("g", (1, 2), 1, Sampling(4))])
    assert asked.calls[-2:] == ["wake_up", "add_request"]


def test_it_stays_awake_while_completions_are_unfinished_or_where_it_does_not_sleep() -> None:
    asked = Asked()
    made = engine(asked, sleeps=True)
    made.submit([RolloutRequest("g", (1, 2), 1, Sampling(4))])
    made.rest()
    assert asked.calls == ["add_request"]
    other = Asked()
    engine(other, sleeps=False).rest()
    assert other.calls == []


@pytest.mark.timeout(600)
def test_a_platform_without_sleep_mode_is_told(tmp_path: Any) -> None:
    settings = EngineSettings(str(tmp_path), "float32", 64, kv_cache_bytes=2**24, sleeps=True)
    with pytest.raises(InputError, match="vLLM has no sleep mode on its platform here"):
        ColocatedEngine(settings)
