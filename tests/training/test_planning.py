"""A run's memory, planned before anything is loaded: said, warned of, refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.memory import Card
from ascent.memory.cards import exactly
from ascent.training import planning

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


def arguments(**changed: Any) -> Any:
    return SimpleNamespace(**{"plain": False, "world_size": 1, "max_tokens_per_batch": "auto", **changed})


def planned(
    monkeypatch: pytest.MonkeyPatch, policy: Path, card: Card, check: str = "refuse", **trainer: Any
) -> tuple[Any, list[str]]:
    """The plan for a device, and what is said."""
    monkeypatch.setattr(planning, "this_card", lambda: card)
    settings = {"rollout": {"engine": "transformers"}, "memory": {"check": check}, "trainer": trainer}
    config = RunConfig.model_validate({"model": {"path": str(policy)}, **settings})
    said: list[str] = []
    return planning.plan_run(config, arguments(), policy, said.append), said


def test_what_fits_is_said(monkeypatch: pytest.MonkeyPatch, tiny_policy: Callable[..., Path]) -> None:
    made, said = planned(monkeypatch, tiny_policy(), exactly(2**36))
    assert made.verdict == "fits"
    assert len(said) == 1
    assert said[0].startswith("memory: fits: training takes most")


def test_what_cannot_fit_is_refused_unless_one_insists(
    monkeypatch: pytest.MonkeyPatch, tiny_policy: Callable[..., Path]
) -> None:
    with pytest.raises(InputError, match="memory: does not fit: training takes") as refused:
        planned(monkeypatch, tiny_policy(), exactly(2**24))
    assert "What gains most:\n  - " in str(refused.value)
    assert "insist with --force" in str(refused.value)
    made, said = planned(monkeypatch, tiny_policy(), exactly(2**24), "warn")
    assert made.verdict == "no"
    assert said[0].startswith("warning: memory: does not fit")
    assert planned(monkeypatch, tiny_policy(), exactly(2**24), "off") == (None, [])


def test_what_is_close_is_warned_of_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tiny_policy: Callable[..., Path]
) -> None:
    whole, _ = planned(monkeypatch, tiny_policy(), exactly(2**36))
    made, said = planned(monkeypatch, tiny_policy(), replace(whole.card, usable=(whole.lower + whole.upper) // 2))
    assert made.verdict == "close"
    assert said[0].startswith("warning: memory: close: training takes")


def test_a_model_that_is_not_known_is_said_and_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mine"}', "utf-8")
    made, said = planned(monkeypatch, tmp_path, exactly(2**24))
    assert made is None
    assert "note: memory isn't planned" in said[0]
    assert "model_type='mine' is not known" in said[0]


def test_tokens_of_a_pass_come_from_memory_on_an_accelerator(
    monkeypatch: pytest.MonkeyPatch, tiny_policy: Callable[..., Path]
) -> None:
    made, _ = planned(monkeypatch, tiny_policy(), exactly(2**36), gradient_accumulation_steps=16)
    batch = made.settings.batch
    assert planning.tokens_by_memory(arguments(), made) == 4 * batch.micro_batch * batch.length  # at most
    tight, _ = planned(
        monkeypatch, tiny_policy(), replace(made.card, usable=int(made.upper * 1.05)), gradient_accumulation_steps=16
    )
    fewer = planning.tokens_by_memory(arguments(), tight)
    assert fewer is not None
    assert batch.length < fewer < 4 * batch.micro_batch * batch.length
    assert planning.tokens_by_memory(arguments(max_tokens_per_batch=77), made) is None
    assert planning.tokens_by_memory(arguments(), None) is None
    on_cpu = replace(made, card=replace(made.card, kind="cpu"))
    assert planning.tokens_by_memory(arguments(), on_cpu) is None


def test_the_plan_is_of_the_passes_that_the_run_makes(
    monkeypatch: pytest.MonkeyPatch, tiny_policy: Callable[..., Path]
) -> None:
    made, _ = planned(monkeypatch, tiny_policy(), exactly(2**36), gradient_accumulation_steps=16)
    args = arguments()
    taken = planning.take_tokens(args, made)
    assert taken is not None
    assert taken.settings.batch.budget == args.max_tokens_per_batch == planning.tokens_by_memory(arguments(), made)
    assert taken.peak.total > made.peak.total, "four micro-batches at once"
    given = arguments(max_tokens_per_batch=77)
    assert planning.take_tokens(given, made) is made
    assert given.max_tokens_per_batch == 77
    assert planning.take_tokens(arguments(), None) is None


def test_this_card_is_the_hosts_memory_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    halved = planning.this_card()
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    whole = planning.this_card()
    assert whole.kind == "cpu"
    assert halved.usable == pytest.approx(whole.usable / 2, rel=0.2)
