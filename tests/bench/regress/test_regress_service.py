"""Which services can be asked, and how an engine is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascent.bench.regress.service import check_untouched
from ascent.bench.regress.subject import EngineChoice, parse_engine
from ascent.errors import InputError
from ascent.rollout.engines.served.replica import ReplicaStatus

pytestmark = pytest.mark.torch
FREE = ReplicaStatus("model", 128, "a", "none", None, 0, None, "0.31.0", frozenset())


def test_only_a_service_as_it_was_started_is_asked() -> None:
    check_untouched(FREE, "policy")
    with pytest.raises(InputError, match=r"service policy is held by a training \(run 7\)"):
        check_untouched(replace(FREE, holder={"name": "run 7"}), "policy")
    for weights in ("ready", "updating"):
        with pytest.raises(InputError, match=r"has a training's weights \(version 3\)"):
            check_untouched(replace(FREE, weights=weights, version=3), "policy")


def test_names_of_engines() -> None:
    assert parse_engine("colocated") == EngineChoice("colocated")
    assert parse_engine("service:policy") == EngineChoice("service", "policy")
    assert parse_engine("service:http://10.0.0.5:8000") == EngineChoice("service", "http://10.0.0.5:8000")
    for text in ("", "vllm", "service", "service:", "colocated:policy", "Transformers"):
        with pytest.raises(InputError, match="expected colocated, transformers, or service:NAME"):
            parse_engine(text)
