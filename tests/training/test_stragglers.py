"""Over-sampling: generations that are closed without their stragglers, which go on in the next ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.far_engine import FarEngine
from tests.ragged_engine import RaggedEngine
from tests.small_trainer import Memory, make_trainer

from ascent.errors import InputError
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.tracking.rollouts import RolloutRecord
from ascent.types import Completion, RolloutRequest, Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
NEEDED, AT_ONCE, SIZE = 4, 6, 4  # groups; completions of one
SETTINGS: Mapping[str, Any] = {
    "use_vllm": True,
    "vllm_mode": "server",
    "seeded_sampling": True,
    "verify": False,  # the stand-in's log-probabilities are no policy's
    "per_device_train_batch_size": NEEDED * SIZE,
    "gradient_accumulation_steps": 1,
    "num_generations": SIZE,
    "max_completion_length": 40,
    "vllm_importance_sampling_mode": "token_truncate",
    "oversample_factor": AT_ONCE / NEEDED,
}


def letters(completions: list[str], **_: Any) -> list[float]:
    return [len(set(text)) / 10 for text in completions]


def run(policy: Path, folder: Path, *, resume: str | None = None, **settings: Any) -> Memory:
    memory = Memory()
    given = {**SETTINGS, "engine": RaggedEngine(), "reward": letters, **settings}
    make_trainer(policy, folder, memory, **given).train(resume_from_checkpoint=resume)
    return memory


def trained(memory: Memory) -> list[RolloutRecord]:
    return [record for _, generation, _ in memory.generations for record in generation]


def metric(memory: Memory, name: str) -> list[float]:
    return [float(step.metrics[name] or 0.0) for step in memory.steps]


def drawn_in(record: RolloutRecord) -> int:
    return int(record.group_id.split("-")[0])


def told(record: RolloutRecord) -> tuple[Any, ...]:
    spans = list(record.weight_spans or ())
    return (
        record.generation, record.group_id, record.index, tuple(record.completion_ids), tuple(record.logps), spans,
        record.weight_version, record.reward, record.advantage,
    )  # fmt: skip


# ---- what happens over many generations ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_run(tiny_policy: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Memory, RaggedEngine]:
    engine = RaggedEngine(telling=True)
    folder = tmp_path_factory.mktemp("long")
    return run(tiny_policy(), folder, max_steps=24, engine=engine, max_straggler_age=2), engine


def test_every_prompt_that_is_drawn_is_trained_on_once(long_run: tuple[Memory, RaggedEngine]) -> None:
    memory, engine = long_run
    asked = {request.group_id for request in engine.asked if "/" not in request.group_id}
    seen = Counter((record.group_id, record.index) for record in trained(memory))
    assert set(seen.values()) == {1}
    assert len(seen) == 24 * NEEDED * SIZE
    left = asked - {group for group, _ in seen}
    assert len(left) <= AT_ONCE - NEEDED, "only those that the last generation was closed without"
    assert metric(memory, "sampling/groups_dropped") == [0] * 24
    assert {record.dropped_why for record in trained(memory)} == {None}
    tasks = Counter(record.task_id for record in trained(memory) if record.index == 0)
    assert max(tasks.values()) - min(tasks.values()) <= 2, "long tasks as often as short ones"


def test_long_completions_are_late_and_never_too_late(long_run: tuple[Memory, RaggedEngine]) -> None:
    memory, _ = long_run
    late = [record for record in trained(memory) if drawn_in(record) < record.generation]
    assert late, "nothing was carried over"
    assert max(record.generation - drawn_in(record) for record in late) == 2
    short = [record for record in trained(memory) if drawn_in(record) == record.generation]
    mean = [sum(len(each.completion_ids) for each in part) / len(part) for part in (short, late)]
    assert mean[0] < mean[1]
    stale = [record.step - 1 - record.weight_version for record in late]
    assert max(stale) <= 2
    assert metric(memory, "rollout/staleness")[-1] > 0


def test_parts_keep_the_log_probabilities_of_the_weights_that_sampled_them(
    long_run: tuple[Memory, RaggedEngine],
) -> None:
    memory, _ = long_run
    parted = [record for record in trained(memory) if record.weight_spans]
    assert len(parted) > 10
    assert max(len(record.weight_spans or ()) for record in parted) == 3
    for record in trained(memory):
        spans = list(record.weight_spans or [(0, record.weight_version)])
        assert spans[0][0] == 0
        assert spans == sorted(set(spans))
        assert record.weight_version == min(version for _, version in spans)
        lengths = np.diff([*(start for start, _ in spans), len(record.completion_ids)])
        assert (lengths > 0).all()
        versions = np.repeat([version for _, version in spans], lengths)
        assert record.logps.tolist() == (-1.0 - versions).tolist()
        assert len(record.completion_ids) <= 40
        assert (record.completion_ids[-1] == 2) == (record.finish_reason == "stop")
        assert 2 not in record.completion_ids[:-1].tolist()


def test_parts_go_on_where_they_were_with_seeds_of_their_own(long_run: tuple[Memory, RaggedEngine]) -> None:
    memory, engine = long_run
    whole = {(record.group_id, record.index): record for record in trained(memory)}
    firsts = {request.group_id: request for request in engine.asked if "/" not in request.group_id}
    seeds = Counter(request.seed for request in engine.asked)
    for request in engine.asked:
        if "/" not in request.group_id:
            continue
        group, index = request.group_id.split("/")
        prompt, sampled = firsts[group].prompt_ids, len(request.prompt_ids) - len(firsts[group].prompt_ids)
        assert request.prompt_ids[: len(prompt)] == prompt
        assert request.sampling.max_tokens == 40 - sampled
        assert sampled == 0 or seeds[request.seed] == 1
        if (group, int(index)) in whole:
            record = whole[group, int(index)]
            assert record.completion_ids[:sampled].tolist() == list(request.prompt_ids[len(prompt) :])


def test_a_generation_is_closed_when_enough_groups_are_complete(
    long_run: tuple[Memory, RaggedEngine], tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    memory, engine = long_run
    assert all(0 <= count <= AT_ONCE - NEEDED for count in metric(memory, "sampling/stragglers"))
    assert max(metric(memory, "sampling/stragglers")) == AT_ONCE - NEEDED
    held = [
        count
        for count, tokens in zip(
            *(metric(memory, f"sampling/{name}") for name in ("stragglers", "carried_tokens")), strict=True
        )
        if tokens
    ]
    assert held
    waiting = RaggedEngine()
    run(tiny_policy(), tmp_path, max_steps=24, engine=waiting, oversample_factor=1.0)
    assert engine.polls < 0.8 * waiting.polls, "what it is for"


# ---- a checkpoint, and runs that repeat -----------------------------------------------------------------------------


def test_a_run_that_is_resumed_in_the_middle_goes_on_with_its_stragglers(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"max_steps": 8, "save_steps": 1, "save_strategy": "steps", "max_straggler_age": 3}
    whole = run(tiny_policy(), tmp_path, **settings)
    left = metric(whole, "sampling/stragglers")
    at = next(step for step in range(3, 8) if left[step - 1])
    file = tmp_path / f"checkpoint-{at}" / "stragglers-rank0.safetensors"
    assert file.is_file()
    resumed = run(tiny_policy(), tmp_path, resume=str(file.parent), **settings)
    assert [told(each) for each in trained(resumed)] == [told(each) for each in trained(whole) if each.generation >= at]
    assert metric(resumed, "loss") == metric(whole, "loss")[at:]
    off = {**settings, "oversample_factor": 1.0, "max_straggler_age": 4, "max_resample_factor": 3.0}
    without = run(tiny_policy(), tmp_path / "without", resume=str(file.parent), **off)
    old = {each.group_id for each in trained(without) if drawn_in(each) < at}
    assert len(old) >= left[at - 1], "they are brought to an end where nothing is over-sampled any more"
    file.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"stragglers-rank0\.safetensors is not what a run writes"):
        run(tiny_policy(), tmp_path, resume=str(file.parent), **settings)


def test_with_replacing_groups_count_when_they_have_signal(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    def even_tasks_teach(completions: list[str], task_id: list[str], **_: Any) -> list[float]:
        tasks = [int(task.split("/")[1]) for task in task_id]
        return [0.5 if task % 2 else len(text) / 40 for task, text in zip(tasks, completions, strict=True)]

    settings: dict[str, Any] = {"max_steps": 6, "save_steps": 1, "save_strategy": "steps", "max_resample_factor": 4.0}
    settings |= {"reward": even_tasks_teach, "engine": RaggedEngine(seconds=0.002)}
    memory = run(tiny_policy(), tmp_path, **settings)
    kept = [each for each in trained(memory) if each.kept]
    assert len(kept) == 6 * NEEDED * SIZE
    assert all(int(each.task_id.split("/")[1]) % 2 == 0 for each in kept)
    dropped = {each.dropped_why for each in trained(memory) if not each.kept}
    assert dropped == {"no signal: all scores of its group are equal"}
    assert set(Counter((each.group_id, each.index) for each in trained(memory)).values()) == {1}
    at = next(step for step in range(2, 6) if metric(memory, "sampling/stragglers")[step - 1])
    settings["engine"] = RaggedEngine(seconds=0.002)
    resumed = run(tiny_policy(), tmp_path, resume=str(tmp_path / f"checkpoint-{at}"), **settings)
    before = {each.group_id for each in trained(memory) if each.generation < at}
    late = {each.group_id for each in trained(resumed) if drawn_in(each) < at}
    assert late
    assert not late & before, "nothing is trained on twice"


def test_rewards_of_completions_that_wait_are_begun_once_and_asked_for_once(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    class Streamed:
        __name__ = "streamed"

        def __init__(self) -> None:
            self.started: Counter[tuple[str, str]] = Counter()
            self.asked: Counter[tuple[str, str]] = Counter()

        def start(self, row: Mapping[str, Any], text: str) -> None:
            self.started[row["task_id"], text] += 1

        def __call__(self, completions: list[str], task_id: list[str], **_: Any) -> list[float]:
            self.asked.update(zip(task_id, completions, strict=True))
            return letters(completions)

    reward = Streamed()
    settings: dict[str, Any] = {"max_steps": 6, "save_steps": 1, "save_strategy": "steps"}
    memory = run(tiny_policy(), tmp_path, reward=reward, **settings)
    assert reward.asked.total() >= 6 * NEEDED * SIZE
    assert not reward.asked - reward.started
    waiting = (reward.started - reward.asked).total()
    assert waiting <= (AT_ONCE - NEEDED) * SIZE
    at = next(step for step in range(2, 6) if metric(memory, "sampling/stragglers")[step - 1])
    again = Streamed()
    run(tiny_policy(), tmp_path, reward=again, resume=str(tmp_path / f"checkpoint-{at}"), **settings)
    assert not again.asked - again.started, "begun anew by the process that goes on"
    assert (again.started - again.asked).total() == waiting


def test_old_log_probabilities_of_the_training_forward_are_those_of_a_pass_of_their_own(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    """Also for rows whose parts were sampled by older weights."""
    skipped, taken = (
        run(tiny_policy(), tmp_path / str(skip), max_steps=6, skip_old_logps=skip, skip_zero_advantage=False)
        for skip in (True, False)
    )
    assert any(record.weight_spans for record in trained(skipped))
    ours = metric(skipped, "sampling/importance_sampling_ratio/mean")
    assert ours == pytest.approx(metric(taken, "sampling/importance_sampling_ratio/mean"), rel=1e-4)
    assert len({round(each, 6) for each in ours}) > 1
    assert metric(skipped, "grad_norm") == pytest.approx(metric(taken, "grad_norm"), rel=1e-4)


# ---- what can't be had ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"oversample_factor": 0.5}, "oversample_factor=0.5: should be at least 1"),
        ({"oversample_factor": float("inf")}, "should be at least 1"),
        ({"oversample_factor": 1.1}, "no further group would be sampled.*\n.*1.25 or more"),
        ({"oversample_factor": 1.0, "max_straggler_age": 3}, "no meaning without over-sampling"),
        ({"max_straggler_age": 0}, "max_straggler_age=0: should be 1 or more"),
        ({"max_resample_factor": 1.25}, "more groups than max_resample_factor=1.25 lets a generation draw"),
        ({"max_resample_factor": 2.0, "max_surplus_age": 1}, "carried over as it is"),
        ({"curriculum": True}, "no meaning without dynamic sampling"),
        ({"vllm_importance_sampling_correction": False}, "need the correction"),
        ({"engine": "transformers", "use_vllm": False}, "samples whole batches|need the correction"),
        ({"engine": FarEngine(), "verify": True}, "FarEngine can't hand out what it has"),
        ({"generation_kwargs": {"stop": ["\n"]}}, "with stop a completion"),
        ({"engine": None, "plain": True, "vllm_mode": "colocate"}, "oversample_factor would not be used"),
    ],
)
def test_settings_that_can_t_be_had_are_refused(
    settings: dict[str, Any], expected: str, tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises((InputError, ValueError), match=expected):
        make_trainer(tiny_policy(), tmp_path, **{**SETTINGS, "engine": RaggedEngine(), **settings})


def test_sampling_ahead_is_refused(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    class Far(RaggedEngine):
        from ascent.rollout.engine import EnginePlace

        place = EnginePlace.ELSEWHERE

    with pytest.raises(InputError, match="with staleness 1 a generation has the time of a whole step"):
        make_trainer(tiny_policy(), tmp_path, **{**SETTINGS, "engine": Far(), "staleness": 1})


# ---- parts ----------------------------------------------------------------------------------------------------------


def part(ids: list[int], version: int, seconds: float = 1.0, **more: Any) -> Completion:
    given = {"group_id": "7-2", "index": 3, "prompt_ids": (1, 2), "finish_reason": "abort", **more}
    return Completion(
        token_ids=as_token_ids(ids), logps=as_logps([-float(each) for each in ids]), weight_version=version,
        submitted_at=10.0, finished_at=10.0 + seconds, **given,
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=5), st.integers(1, 4))
def test_a_completion_of_any_parts_is_as_if_it_had_never_been_broken_off(
    parts: list[tuple[int, int]], end: int
) -> None:
    from ascent.training.step.groups import Begun, LocalGroup
    from ascent.training.step.parts import joined, requests_of

    versions = [*sorted(version for _, version in parts), 4]
    lengths = [length for length, _ in parts] + [end]
    request = RolloutRequest("7-2", (1, 2), 4, Sampling(30, extra=(("min_tokens", 2),)), seed=9)
    ids, each = iter(range(100, 200)), None
    for number, (length, version) in enumerate(zip(lengths, versions, strict=True)):
        own = [next(ids) for _ in range(length)]
        if each is None:
            each = part(own, version)
            continue
        [(asked, known)] = requests_of(LocalGroup(request, 0, 0, begun=Begun((), (each,))))
        assert known is each
        assert asked.prompt_ids == (1, 2, *each.token_ids.tolist())
        assert asked.sampling.max_tokens == 30 - len(each.token_ids)
        assert asked.sampling.extra == (("min_tokens", max(0, 2 - len(each.token_ids))),)
        assert (asked.seed == 9 + 3) == (len(each.token_ids) == 0)
        last = number == len(versions) - 1
        more: dict[str, Any] = {"finish_reason": "stop"} if last else {}
        rest = part(own, version, group_id=asked.group_id, index=0, prompt_ids=asked.prompt_ids, **more)
        each = joined(each, rest)
    assert each is not None
    total = sum(lengths)
    assert each.token_ids.tolist() == list(range(100, 100 + total))
    assert each.logps.tolist() == [-float(token) for token in range(100, 100 + total)]
    assert (each.group_id, each.index, each.prompt_ids, each.finish_reason) == ("7-2", 3, (1, 2), "stop")
    assert each.finished_at - each.submitted_at == pytest.approx(len(versions))
    spans = each.weight_spans or ((0, each.weight_version),)
    starts = [start for start, _ in spans] + [total]
    of_tokens = [
        version for (_, version), a, b in zip(spans, starts[:-1], starts[1:], strict=True) for _ in range(b - a)
    ]
    assert of_tokens == [version for version, length in zip(versions, lengths, strict=True) for _ in range(length)]
    assert len(each.weight_spans) != 1
    assert each.weight_version == min(of_tokens)


def test_settings_that_look_back_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.training.step.parts import outlasting

    harmless: tuple[tuple[str, Any], ...] = (
        ("min_tokens", 3),
        ("logit_bias", {4: 1.0}),
        ("stop", None),
        ("stop", []),
        ("presence_penalty", 0.0),
    )
    assert outlasting(Sampling(4, extra=harmless)) == []
    for name, value in (("stop", ["x"]), ("bad_words", ["y"]), ("presence_penalty", 1.0), ("seed", 3), ("n", 2)):
        assert outlasting(Sampling(4, extra=(*harmless, (name, value)))) == [name]
