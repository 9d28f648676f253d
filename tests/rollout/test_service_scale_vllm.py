"""A service of real vLLM servers behind a gateway, scaled up and down while a training samples from it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.test_service_gateway import call
from tests.rollout.test_service_vllm import NAME, Serving, engine_for, requests_for, sample

from ascent.rollout.service.address import find_service
from ascent.types import Sampling

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_service_is_scaled_while_a_training_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_policy: Callable[..., Path], ascent: Callable[..., Any]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    serving = Serving(tmp_path, tiny_policy(), "--gateway")
    try:
        serving.wait("ends it")
        address = find_service(NAME)
        assert address.gateway is not None
        headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"}
        body = {"model": address.model, "prompt": [10, 20, 30], "max_tokens": 4}
        status, _, content = call(address.gateway, "POST", "/v1/completions", body, headers)
        assert status == 200, content
        assert json.loads(content)["usage"]["completion_tokens"] == 4
        status, _, content = call(address.gateway, "POST", "/v1/completions", {**body, "stream": True}, headers)
        assert content.endswith(b"data: [DONE]\n\n")
        assert call(address.gateway, "POST", "/collective_rpc", {}, headers)[0] == 404

        engine = engine_for(address)
        requests = requests_for([Sampling(50, extra=(("ignore_eos", True),))] * 8, n=8)
        expected = sample(engine, requests)
        answers: list[Any] = []
        scaling = threading.Thread(target=lambda: answers.append(ascent("serve", "--scale", NAME, "2")))
        scaling.start()
        while scaling.is_alive():
            assert sample(engine, requests).keys() == expected.keys()
        assert answers[0].returncode == 0, answers[0].stderr
        assert len(find_service(NAME).urls) == 2
        while not all(member.up for member in engine._dispatcher.members) or len(engine._dispatcher.members) < 2:
            engine.poll()
        new = engine._dispatcher.members[1]
        assert not new.answers, "it has no weights yet"
        engine.update_weights(iter(()), 2)
        sample(engine, requests)
        assert new.answers

        engine.submit(requests)
        scaling = threading.Thread(target=lambda: answers.append(ascent("serve", "--scale", NAME, "1")))
        scaling.start()
        finished = 0
        while engine.unfinished():
            finished += len(engine.poll())
        assert finished == 64
        scaling.join()
        assert answers[1].returncode == 0, answers[1].stderr
        assert find_service(NAME).urls == address.urls
        assert sample(engine, requests).keys() == expected.keys()
        engine.close()
    finally:
        serving.stop()
