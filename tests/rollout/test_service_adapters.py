"""Several trainings on one service, each with an adapter of its own: real vLLM, real PEFT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.test_service_vllm import NAME, Serving, sample

from ascent.errors import InputError
from ascent.rollout.engine import Canary, WeightMismatchError, WeightSyncError
from ascent.rollout.service.address import find_service
from ascent.types import RolloutRequest, Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800), pytest.mark.slow]
PROMPT = (10, 20, 30, 40)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.training.batches.policies import build_policy

    return build_policy("llama", tmp_path_factory.mktemp("policy") / "policy")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        made = Serving(folder, policy, "--adapters", "2", "--adapter-rank", "8")
        made.wait("ends it")
        yield made
        made.stop()


def adapted(policy: Path, seed: int) -> Any:
    """The policy with a LoRA adapter that changes what it says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(str(policy)),
        LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    change(model, seed)
    return model.eval()


def change(model: Any, seed: int) -> None:
    import torch

    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)


def greedy(model: Any, tokens: int) -> list[int]:
    import torch

    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def canary(model: Any) -> Canary:
    import torch

    sequence = (*PROMPT, 50, 60, 70)
    with torch.no_grad():
        logits = model(torch.tensor([sequence])).logits[0].float().log_softmax(-1)
    logps = tuple(float(logits[place, token]) for place, token in enumerate(sequence[1:]))
    return Canary((sequence,), (logps,), "float32")


def training(name: str) -> Any:
    from ascent.training.engines.servers import connect

    return connect(NAME, dtype="float32", name=name, adapter=True)


def deliver(engine: Any, model: Any, version: int, known: Canary | None = None) -> None:
    from ascent.rollout.weights.adapters import adapter_tensors

    engine.update_weights(adapter_tensors(model), version, known or canary(model))


def says(engine: Any, tokens: int = 12) -> list[int]:
    request = RolloutRequest("g", PROMPT, 1, Sampling(tokens, temperature=0.0, extra=(("ignore_eos", True),)), 5)
    return [int(token) for token in sample(engine, [request])["g", 0].token_ids]


def test_two_trainings_at_once_each_sample_from_their_own_adapter(serving: Serving, policy: Path) -> None:
    first, second = adapted(policy, 1), adapted(policy, 2)
    wanted = greedy(first, 12), greedy(second, 12)
    assert wanted[0] != wanted[1]
    a, b = training("first"), training("second")
    try:
        deliver(a, first, 1)
        deliver(b, second, 7)
        assert (says(a), says(b)) == wanted
        change(first, 3)  # one's update is no other's affair
        deliver(a, first, 2)
        assert says(a) == greedy(first, 12) != wanted[0]
        assert says(b) == wanted[1]
        with pytest.raises(InputError, match="all 2 adapters are held"):
            training("third")
        from ascent.training.engines.servers import connect

        with pytest.raises(InputError, match="base weights are frozen"):
            connect(NAME, dtype="float32", name="whole")
    finally:
        a.close()
        b.close()


def test_an_adapter_that_is_not_the_trainers_is_found(
    serving: Serving, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ascent.rollout.weights import adapter_delivery

    model, other = adapted(policy, 1), adapted(policy, 2)
    engine = training("watched")
    try:
        with pytest.raises(WeightMismatchError, match="log-probabilities of known sequences differ"):
            deliver(engine, model, 1, canary(other))
        whole = adapter_delivery._files

        def altered(tensors: Any) -> dict[str, bytes]:
            name = next(name for name in tensors if name.endswith("lora_B.weight"))
            return whole({**tensors, name: tensors[name] + 1e-3})

        monkeypatch.setattr(adapter_delivery, "_files", altered)
        with pytest.raises(WeightMismatchError, match="other tensors than were sent"):
            deliver(engine, model, 2)
        monkeypatch.undo()
        deliver(engine, model, 3)
        assert says(engine) == greedy(model, 12)
        for _, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data[0] = float("nan")
        with pytest.raises(WeightSyncError, match="not finite"):
            deliver(engine, model, 4, canary(other))
    finally:
        engine.close()
    find_service(NAME)  # the service is as it was
