"""Log-probabilities in one string: what vLLM's own classes say at length, for whoever asked for it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.rollout.test_service_guard import Door

from ascent.rollout.engines.served.jobs import BrokenAnswerError, Job
from ascent.rollout.in_vllm.compat import short_answers
from ascent.rollout.in_vllm.guard import CANARY_HEADER, GENERATE, HOLD_HEADER, VERSION_HEADER
from ascent.types import Completion, RolloutRequest, Sampling

pytestmark = pytest.mark.torch

IDS = [5, 150_000, 5, 7, 9]
LOGPS = [-0.1, -20_000.0, -math.inf, math.nan, 0.0]


def completion_of(logprobs: Any, ids: list[int] = IDS) -> Completion:
    choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": logprobs}
    body = json.dumps({"choices": [choice]}).encode()
    return Job(RolloutRequest("g", (1,), 1, Sampling(8)), 0, 0.0).completion(body, 1)


def vllm_s_answer(logps: list[float], *, short: bool) -> Any:
    """What vLLM's own server makes of tokens and their log-probabilities."""
    from vllm.logprobs import Logprob

    found = next(name for name in short_answers._SERVERS if exists(name))
    tokens = importlib.import_module(found).ServingTokens

    at = [{token: Logprob(logp, 1, None)} for token, logp in zip(IDS, logps, strict=True)]
    with short_answers.answering(short=short):
        return tokens._create_tokens_logprobs(SimpleNamespace(), IDS, [*at[:-1], None], 0).model_dump()


def exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_vllm_says_in_short_what_it_says_at_length() -> None:
    finite = [*LOGPS[:3], -0.25, 0.0]  # JSON has no NaN
    long, short = vllm_s_answer(finite, short=False), vllm_s_answer(finite, short=True)
    assert len(long["content"]) == len(IDS)
    assert len(short["content"]) == 1
    expected = completion_of(long)
    assert expected.logps.tolist() == pytest.approx([-0.1, -9999.0, -9999.0, -0.25, -9999.0])
    assert completion_of(short).logps.tolist() == expected.logps.tolist()
    assert completion_of(short).token_ids.tolist() == IDS
    assert vllm_s_answer(finite, short=False) == long, "who didn't ask is answered as ever"


def test_what_is_not_a_number_stays_so() -> None:
    assert math.isnan(completion_of(vllm_s_answer(LOGPS, short=True)).logps[3])


def test_one_token_and_none() -> None:
    assert completion_of({"content": []}, []).logps.tolist() == []
    assert completion_of({"content": [{"token": "token_id:5", "logprob": -0.5}]}, [5]).logps.tolist() == [-0.5]
    packed = short_answers.pack([5], [{5: SimpleNamespace(logprob=-0.5)}])
    assert completion_of({"content": [{"token": packed, "logprob": 0.0}]}, [5]).logps.tolist() == [-0.5]
    assert completion_of({"content": [{"token": short_answers.pack([], []), "logprob": 0.0}]}, []).logps.tolist() == []


@pytest.mark.parametrize("packed", ["AAAAvw", "AAAA", "====", "äöü", "AAAAv w=="])
def test_a_broken_string_is_a_broken_answer(packed: str) -> None:
    with pytest.raises(BrokenAnswerError):
        completion_of({"content": [{"token": short_answers.MARK + packed, "logprob": 0.0}]}, [5])


def test_another_vllm_answers_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose server is made otherwise: nothing is mended, and nothing fails."""
    for name in short_answers._SERVERS:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with short_answers.answering(short=True):
        pass
    for name in short_answers._SERVERS:
        monkeypatch.delitem(sys.modules, name)
    with short_answers.answering(short=True):
        pass


def test_the_guard_passes_on_who_asks(tmp_path: Any) -> None:
    """Concurrent requests too; a canary and OpenAI's routes are answered as ever."""
    asked: dict[str, bool] = {}

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.01)
        asked[scope["path"] + str(len(asked))] = short_answers._asked.get()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def test() -> None:
        door = Door(tmp_path)
        door.guard._app = served
        hold = (await door.call("POST", "/ascent/hold", {"holder": {"name": "a"}, "hold": None}))[1]["hold"]
        holds = {HOLD_HEADER.replace("-", "_"): hold}
        short = {short_answers.HEADER.replace("-", "_"): "1"}
        await door.call("POST", "/ascent/weights/begin", {"version": 1}, **holds)
        canary = {CANARY_HEADER.replace("-", "_"): "1"}
        assert (await door.call("POST", GENERATE, {}, **holds, **canary, **short))[0] == 200
        await door.call("POST", "/ascent/weights/commit", {"version": 1}, **holds)
        version = {VERSION_HEADER.replace("-", "_"): "1"}
        both = (door.call("POST", GENERATE, {}, **holds, **version, **more) for more in (short, {}))
        assert [status for status, _ in await asyncio.gather(*both)] == [200, 200]
        assert (await door.call("POST", "/v1/completions", {}, **short))[0] == 200

    asyncio.run(test())
    assert list(asked.values()) == [False, True, False, False]
