"""Rewards that are models, scored as completions end: TRL's numbers, and one clear message for what goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.small_trainer import Memory, make_trainer

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from ascent import devices  # noqa: E402
from ascent.errors import InputError  # noqa: E402
from ascent.rewards.base import DroppableReward, StreamedReward  # noqa: E402
from ascent.rewards.model import ModelReward  # noqa: E402
from ascent.rollout.engine import EnginePlace  # noqa: E402
from ascent.training.step.model_rewards import stream_model_rewards  # noqa: E402

pytestmark = pytest.mark.torch
TinyPolicy = Callable[..., Path]


@pytest.fixture(scope="module")
def scorer(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random reward model, with the tiny policy's tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    folder = tmp_path_factory.mktemp("scorer")
    AutoTokenizer.from_pretrained(tiny_policy()).save_pretrained(folder)
    torch.manual_seed(5)
    config = LlamaConfig.from_pretrained(tiny_policy(), num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


def loaded(scorer: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(scorer).to(devices.current())
    return model, AutoTokenizer.from_pretrained(scorer)


def reward_of(scorer: Path, **settings: Any) -> ModelReward:
    model, tokenizer = loaded(scorer)
    return ModelReward(model, tokenizer, "scorer", device=devices.current(), **settings)


def alone(scorer: Path, texts: list[str]) -> list[float]:
    """What the model gives each text by itself."""
    model, tokenizer = loaded(scorer)
    with torch.inference_mode():
        return [
            float(model(**tokenizer(text, return_tensors="pt", add_special_tokens=False).to(model.device)).logits)
            for text in texts
        ]


def test_a_training_gets_trl_s_rewards(scorer: Path, tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    """The same completions and rewards, whether TRL calls the model or a thread does."""
    trained = {}
    for setting in ("off", "on"):
        memory = Memory()
        trainer = make_trainer(
            tiny_policy(), tmp_path / setting, memory, reward=str(scorer), max_steps=2, stream_reward_models=setting
        )
        assert isinstance(trainer.reward_funcs[0], ModelReward) == (setting == "on")
        trainer.train()
        trained[setting] = [
            (row.completion_ids.tolist(), row.reward or 0.0) for _, rows, _ in memory.generations for row in rows
        ]
    assert len(trained["on"]) == 16
    assert [ids for ids, _ in trained["on"]] == [ids for ids, _ in trained["off"]]
    mine, theirs = ([reward for _, reward in trained[setting]] for setting in ("on", "off"))
    assert max(theirs) - min(theirs) > 0.01
    assert mine == pytest.approx(theirs, abs=1e-5)


def test_scores_are_those_of_each_text_alone_however_they_are_padded(scorer: Path) -> None:
    prompts = ["def f(a):" * (1 + number % 3) for number in range(20)]
    texts = ["\n    return a" * (number % 7) + " # end" for number in range(20)]
    expected = alone(scorer, [prompt + text for prompt, text in zip(prompts, texts, strict=True)])
    for at_once in (1, 7, 64):
        reward = reward_of(scorer, at_once=at_once)
        for prompt, text in zip(prompts[:13], texts[:13], strict=True):  # the others were never started
            reward.start({"prompt": prompt}, text)
        assert reward(prompts=prompts, completions=texts) == pytest.approx(expected, abs=1e-5)
        assert not reward._scores
        assert not reward._awaited
        reward.close()


def test_messages_are_written_with_the_reward_s_own_template(scorer: Path) -> None:
    reward = reward_of(scorer, template_settings={"shout": True})
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if shout %}!{% endif %}{% endfor %}"
    reward._tokenizer.chat_template = template
    prompt = [{"role": "user", "content": "add"}]
    reward.start({"prompt": prompt}, "a + b")
    scores = reward(prompts=[prompt], completions=[[{"role": "assistant", "content": "a + b"}]])
    assert scores == pytest.approx(alone(scorer, ["<user>add!<assistant>a + b!"]), abs=1e-5)


def test_equal_completions_are_scored_once_and_let_go_when_all_were_asked_for(scorer: Path) -> None:
    reward, seen = reward_of(scorer), list[Any]()
    inner = reward._scored
    reward._scored = lambda batch: seen.extend(batch) or inner(batch)  # type: ignore[method-assign,func-returns-value]
    for _ in range(3):
        reward.start({"prompt": "a"}, "b")
    ready = reward.watch({"prompt": "a"}, "b")
    assert reward(prompts=["a", "a"], completions=["b", "b"])[0] == pytest.approx(alone(scorer, ["ab"])[0], abs=1e-5)
    assert ready()
    assert len(seen) == 1
    assert len(reward._scores) == 1  # the third is of another batch
    reward.drop({"prompt": "a"}, "b")
    assert not reward._scores
    assert isinstance(reward, StreamedReward)
    assert isinstance(reward, DroppableReward)


class Broken:
    """Waits in its first pass, which is good, until `go`; then it gives what it is told to, or fails."""

    def __init__(self, logits: Any = None) -> None:
        self.logits, self.go, self.passes = logits, threading.Event(), 0

    def __call__(self, input_ids: Any, **_: Any) -> Any:
        self.passes += 1
        if self.passes == 1:
            assert self.go.wait(10)
            return SimpleNamespace(logits=torch.zeros(len(input_ids), 1))
        if self.logits is None:
            raise RuntimeError(f"no memory in {threading.current_thread().name}")
        return SimpleNamespace(logits=self.logits)


@pytest.mark.parametrize(
    ("logits", "said"),
    [
        (None, "reward model scorer failed: RuntimeError: no memory in ascent-scorer"),
        (torch.zeros(3, 1), r"logits of shape \(3, 1\) for 2 completions"),
        (torch.zeros(2), r"logits of shape \(2,\) for 2 completions"),
        (torch.tensor([[0.5], [torch.nan]]), r"nan for 1 of 2 completions \(the first has 9 tokens"),
        (torch.tensor([[-torch.inf], [0.5]]), "-inf for 1 of 2 completions"),
    ],
)
def test_what_goes_wrong_in_the_thread_is_said_once_and_the_next_batch_goes_on(
    scorer: Path, logits: Any, said: str
) -> None:
    reward = reward_of(scorer)
    model, broken = reward._model, Broken(logits)
    reward._model = broken  # type: ignore[assignment]
    reward.start({"prompt": "first"}, "")
    while not broken.passes:  # the thread is in it; what comes now is scored together
        time.sleep(0.001)
    reward.start({"prompt": "abcd"}, "ab")
    reward.start({"prompt": "abcd"}, "xyzuv")
    broken.go.set()
    assert reward(prompts=["first"], completions=[""]) == [0.0]
    with pytest.raises(InputError, match=said):
        reward(prompts=["abcd", "abcd"], completions=["ab", "xyzuv"])
    reward._model = model
    assert reward(prompts=["abcd"], completions=["ab"]) == pytest.approx(alone(scorer, ["abcdab"]), abs=1e-5)


def test_an_error_in_the_thread_ends_the_training(scorer: Path, tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_policy(), tmp_path, reward=str(scorer), stream_reward_models="on")
    trainer.reward_funcs[0]._model = broken = Broken()
    broken.passes = 1  # fails at once
    with pytest.raises(InputError, match="failed: RuntimeError: no memory") as raised:
        trainer.train()
    assert isinstance(raised.value.__cause__, RuntimeError)


def trainer_with(model: Any, setting: str, **more: Any) -> Any:
    from accelerate import DistributedType

    return SimpleNamespace(
        args=SimpleNamespace(stream_reward_models=setting),
        reward_funcs=[len, model],
        reward_func_names=["len", "scorer"],
        reward_processing_classes=[None, None],
        chat_template_kwargs={},
        accelerator=SimpleNamespace(device="cpu", distributed_type=more.get("distributed", DistributedType.NO)),
        _tokenizer=SimpleNamespace(response_template=more.get("parsed")),
    )


def test_auto_streams_where_the_device_is_free_and_on_wherever_it_is_exact(scorer: Path) -> None:
    from accelerate import DistributedType

    model, _ = loaded(scorer)
    places = (EnginePlace.ELSEWHERE, EnginePlace.TRAINERS_PROCESS, EnginePlace.TRAINERS_MODEL)
    for setting, streams in (("auto", (True, False, False)), ("on", (True,) * 3), ("off", (False,) * 3)):
        for place, expected in zip(places, streams, strict=True):
            trainer, told = trainer_with(model, setting), list[str]()
            stream_model_rewards(trainer, place, told.append)
            assert isinstance(trainer.reward_funcs[1], ModelReward) == expected
            assert trainer.reward_funcs[0] is len
            assert len(told) == (setting == "auto" and not expected)
    for trainer, said in (
        (trainer_with(model, "on", distributed=DistributedType.FSDP), "sharded over ranks"),
        (trainer_with(model, "on", parsed="x"), "are parsed before"),
        (trainer_with(torch.nn.Linear(1, 1), "on"), "no model of transformers"),
        (trainer_with(model, "sometimes"), "should be auto, on or off"),
    ):
        with pytest.raises(InputError, match=said):
            stream_model_rewards(trainer, EnginePlace.ELSEWHERE, print)
    model.train()
    model.model.layers[0].self_attn.attention_dropout = 0.1
    with pytest.raises(InputError, match="drops out"):
        stream_model_rewards(trainer_with(model, "on"), EnginePlace.ELSEWHERE, print)
