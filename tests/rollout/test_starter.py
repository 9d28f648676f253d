"""The starter policy: what it learns from, that it is the same each time, and where it is kept."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

from ascent.errors import InputError
from ascent.models.starter import building
from ascent.models.starter.building import Recipe, check_unseen, recipe_of, starter_folder
from ascent.models.starter.noisy_solutions import Noise, examples, noisy_solution, training_tasks
from ascent.models.starter.warm_start import Schedule
from ascent.tasks.builtin import held_out_builtin
from ascent.tasks.loading import load_split

pytestmark = pytest.mark.timeout(1800)
SMALL = Recipe(schedule=Schedule(steps=3, batch=4))


def test_nothing_held_out_is_learnt_from() -> None:
    for seed in (0, 1):
        held_out = load_split("builtin", 0.2, seed)[2]
        assert held_out
        prompts = {task.prompt for task in held_out}
        solutions = {task.solution for task in held_out_builtin(seed, 0.2)[1]}
        learnt = list(itertools.islice(examples(training_tasks(seed), Noise(mistakes=0.0), seed), 3000))
        assert not prompts & {prompt for prompt, _ in learnt}
        assert not solutions & {completion for _, completion in learnt}


def test_noise_is_as_large_as_it_says() -> None:
    task, rng = training_tasks(0)[0], random.Random(0)
    drawn = Counter(noisy_solution(task, Noise(mistakes=0.6, dominant=0.5), rng) for _ in range(4000))
    assert drawn[task.solution] / 4000 == pytest.approx(0.4, abs=0.03)
    assert drawn[task.wrong_solutions[0]] / 4000 == pytest.approx(0.3, abs=0.03)
    assert set(drawn) == {task.solution, *task.wrong_solutions}


def test_names_of_the_starter() -> None:
    assert recipe_of("builtin:starter") == Recipe(0)
    assert recipe_of("builtin:starter:7") == Recipe(7)
    for wrong in ("builtin:start", "builtin:starter:x", "builtin:", "builtin:starter:-1", "builtin:starter7"):
        with pytest.raises(InputError, match="no such built-in model"):
            recipe_of(wrong)


def test_a_run_may_not_hold_out_what_the_starter_has_seen() -> None:
    check_unseen("builtin:starter", "builtin", 0.2, 0)
    check_unseen("builtin:starter:3", "builtin:lists", 0.1, 3)
    check_unseen("builtin:starter", "my_tasks.jsonl", 0.5, 9)
    check_unseen("builtin:starter", "builtin", "other.jsonl", 9)
    check_unseen("builtin:starter", "builtin", 0.0, 9)
    check_unseen("some/model", "builtin", 0.5, 9)
    with pytest.raises(InputError, match=r"(?s)tasks\.seed=1.*model\.path=builtin:starter:1"):
        check_unseen("builtin:starter", "builtin", 0.2, 1)
    with pytest.raises(InputError, match=r"tasks\.held_out=0\.3"):
        check_unseen("builtin:starter", "builtin", 0.3, 0)
    check_unseen("builtin:starter", "builtin", 50, 0)
    with pytest.raises(InputError, match=r"tasks\.held_out=400, but"):
        check_unseen("builtin:starter", "builtin", 400, 0)


def test_smaller_shares_hold_out_a_part_of_what_larger_ones_do() -> None:
    """What `check_unseen` relies on."""
    larger = {task.task.id for task in held_out_builtin(0, 0.2)[1]}
    for share in (0.05, 0.1, 0.15):
        assert {task.task.id for task in held_out_builtin(0, share)[1]} <= larger


@pytest.mark.torch
def test_built_once_the_same_each_time_and_another_for_another_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = starter_folder(SMALL, tmp_path / "one")
    again = starter_folder(SMALL, tmp_path / "two")
    assert first.name == again.name
    for file in ("model.safetensors", "tokenizer.json"):
        assert (first / file).read_bytes() == (again / file).read_bytes()
    other = starter_folder(Recipe(1, schedule=SMALL.schedule), tmp_path / "one")
    assert other.name != first.name
    assert (other / "model.safetensors").read_bytes() != (first / "model.safetensors").read_bytes()
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted([first.name, other.name])

    def fail(*_: object) -> None:
        pytest.fail("built again")

    monkeypatch.setattr(building, "build", fail)
    assert starter_folder(SMALL, tmp_path / "one") == first


@pytest.mark.torch
def test_the_loser_of_a_race_takes_the_winners_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_while_another_does(recipe: Recipe, tasks: object, folder: Path) -> None:
        name = folder.name.split(".")[1]
        for place in (tmp_path / name, folder):
            place.mkdir(parents=True)
            (place / "config.json").write_text(place.name)

    monkeypatch.setattr(building, "build", build_while_another_does)
    folder = starter_folder(SMALL, tmp_path)
    assert (folder / "config.json").read_text() == folder.name
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.torch
def test_tokens_of_prompt_and_completion_do_not_merge(tmp_path: Path) -> None:
    from ascent.models.folder import load_tokenizer

    tokenizer = load_tokenizer(starter_folder(SMALL, tmp_path))
    assert len(tokenizer) == 512
    assert tokenizer.eos_token_id is not None
    assert tokenizer.chat_template is None
    for task in (*training_tasks(0)[::40], *held_out_builtin(0, 0.2)[1][::20]):
        prompt = str(task.task.prompt)
        apart = tokenizer(prompt)["input_ids"] + tokenizer(task.solution)["input_ids"]
        assert tokenizer(prompt + task.solution)["input_ids"] == apart
        assert tokenizer.decode(apart) == prompt + task.solution
        assert len(apart) <= 96


@pytest.mark.torch
def test_the_network_fits_vllm(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(starter_folder(SMALL, tmp_path))
    assert network.config.hidden_size // network.config.num_attention_heads >= 32
    assert 0.9e6 < network.num_parameters() < 1.1e6


@pytest.mark.slow
@pytest.mark.torch
def test_the_starter_has_much_to_learn_and_something_to_learn_from() -> None:
    """25 to 37 % of the samples on held-out tasks are right, and most groups of eight have a right one."""
    import torch
    from transformers import AutoModelForCausalLM

    from ascent.models.folder import load_tokenizer, model_folder

    folder = model_folder("builtin:starter")
    network, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), load_tokenizer(folder)
    tasks = random.Random(0).sample(held_out_builtin(0, 0.2)[1], 96)
    tokenizer.padding_side = "left"
    asked = tokenizer(
        [str(task.task.prompt) for task in tasks], return_tensors="pt", padding=True, return_token_type_ids=False
    )
    torch.manual_seed(0)
    sampled = network.generate(**asked, do_sample=True, top_k=0, num_return_sequences=8, max_new_tokens=32)
    texts = tokenizer.batch_decode(sampled[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [[text == task.solution for text in texts[8 * at : 8 * at + 8]] for at, task in enumerate(tasks)]
    assert 0.25 <= sum(map(sum, right)) / (8 * len(tasks)) <= 0.37
    assert sum(map(any, right)) / len(tasks) >= 0.7
