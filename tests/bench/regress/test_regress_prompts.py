"""The texts that are asked: the project's own, and files of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascent.bench.regress.chance import FALSE_ALARM
from ascent.bench.regress.plan import PASSES, Asked, batches, questions_of
from ascent.bench.regress.prompts import Prompt, read_prompts
from ascent.errors import InputError


class Letters:
    """A token a letter."""

    chat_template = None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


def test_the_project_s_own_are_enough_for_the_test_of_sampling() -> None:
    prompts = read_prompts()
    short = [prompt for prompt in prompts if len((prompt.text + prompt.continuation).encode()) < 220]
    assert 2.0 ** (1 - len(short)) <= FALSE_ALARM, "also with a small context and a token a byte"
    assert any(len(prompt.text) > 2000 for prompt in prompts), "a prompt of several blocks of a KV cache"
    assert len({prompt.text for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no prompt in it"),
        ("\n\n", "no prompt in it"),
        ('{"id": "a", "text": "b"', "line 1: not JSON"),
        ('{"id": "a", "text": "b", "continuation": "c"}\n[]', "line 2: expected an object"),
        ('{"id": "a", "text": "b"}', "found id, text"),
        ('{"id": "a", "text": "b", "continuation": ""}', "line 1: continuation must be a text that isn't empty"),
        ('{"id": "a", "text": 3, "continuation": "c"}', "line 1: text must be"),
        ('{"id": "a", "text": "b", "continuation": "c", "more": 1}', "found continuation, id, more, text"),
        ('{"id": "a\\u001b[2J", "text": "b", "continuation": "c"}', "has control characters"),
        ('{"id": "a", "text": "b", "continuation": "c"}\n' * 2, "'a' stands there more than once"),
    ],
)
def test_files_that_can_t_be_asked(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_prompts(file)
    assert said in str(refused.value)
    assert str(file) in str(refused.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(InputError, match="can't be read"):
            read_prompts(file)
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(InputError, match="can't be read"):
        read_prompts(tmp_path / "latin")


def test_line_ends_inside_a_text_end_no_line(tmp_path: Path) -> None:
    row = {"id": "a", "text": "one\u2028two\x85three", "continuation": "c"}
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    assert read_prompts(file) == (Prompt(**row),)


def test_prompts_longer_than_the_context_are_left_out_and_told() -> None:
    prompts = [Prompt("short", "abc", "de"), Prompt("long", "a" * 100, "b"), Prompt("long end", "a", "b" * 100)]
    fitting = questions_of(prompts, Letters(), Asked(greedy_tokens=8), 40)
    assert [prompt.id for prompt in fitting.prompts] == ["short"]
    assert fitting.left_out == ("long", "long end")
    assert fitting.questions[0].tokens(Asked(greedy_tokens=8)) == 12
    with pytest.raises(InputError, match="none of 3 prompts fits into the context of 4 tokens"):
        questions_of(prompts, Letters(), Asked(), 4)


def test_each_pass_asks_all_prompts_in_batches_of_its_own() -> None:
    seen = []
    for number in range(len(PASSES)):
        found = list(batches(24, number, 42))
        assert sorted(place for batch in found for place in batch) == list(range(24))
        assert found == list(batches(24, number, 42)), "the same in every run"
        seen.append(tuple(map(tuple, found)))
    assert len(set(seen)) == len(PASSES)
