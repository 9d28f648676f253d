"""What was sampled ahead comes back from a checkpoint as it was, also from one of an earlier release."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.training.checkpoint import sampled_ahead
from ascent.types import Completion

pytestmark = pytest.mark.torch


def completion(group: str, index: int, ids: list[int], logps: list[float], prompt: tuple[int, ...]) -> Completion:
    return Completion(group, index, prompt, as_token_ids(ids), as_logps(logps), "length", 3, 10.0, 12.5)


COMPLETIONS = [
    completion("4-0", 0, [5, 6, 7], [-0.5, math.nan, -1.25], (1, 2)),
    completion("4-0", 1, [8], [-0.1], (1, 2)),
    completion("4-1", 0, [], [], (3,)),
    completion("4-2", 0, [9, 150_000], [], (1, 2)),
]


def content(each: Completion) -> Any:
    return (
        (each.group_id, each.index, each.prompt_ids, each.finish_reason, each.weight_version),
        each.token_ids.tolist(),
        str(each.logps.tolist()),
        round(each.finished_at - each.submitted_at, 6),
    )


@pytest.mark.parametrize("kept", [COMPLETIONS, COMPLETIONS[2:3], []])
def test_all_comes_back(kept: list[Completion], tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-3"
    sampled_ahead.save(checkpoint, 1, kept)
    loaded = sampled_ahead.load(checkpoint, 1)
    assert [content(each) for each in loaded] == [content(each) for each in kept]
    assert sampled_ahead.load(checkpoint, 0) == [], "another rank's"
    assert len({id(each.prompt_ids) for each in loaded}) == len({each.prompt_ids for each in kept})
    assert not any(each.token_ids.flags.writeable or each.logps.flags.writeable for each in loaded)


def former(each: Completion) -> dict[str, Any]:
    """As earlier releases wrote it."""
    names = ("group_id", "index", "prompt_ids", "finish_reason", "weight_version", "submitted_at", "finished_at")
    logps = [None if math.isnan(logp) else logp for logp in each.logps.tolist()]
    return {**{name: getattr(each, name) for name in names}, "token_ids": each.token_ids.tolist(), "logps": logps}


def test_a_checkpoint_of_an_earlier_release(tmp_path: Path) -> None:
    (tmp_path / "ahead-rank0.json").write_text(json.dumps({"completions": [former(each) for each in COMPLETIONS]}))
    assert [content(each) for each in sampled_ahead.load(tmp_path, 0)] == [content(each) for each in COMPLETIONS]


@pytest.mark.parametrize("name", ["ahead-rank0.safetensors", "ahead-rank0.json"])
def test_a_broken_file_is_bad_input(name: str, tmp_path: Path) -> None:
    sampled_ahead.save(tmp_path, 0, COMPLETIONS)
    (tmp_path / "ahead-rank0.json").write_text(json.dumps({"completions": [former(each) for each in COMPLETIONS]}))
    whole = (tmp_path / name).read_bytes()
    if name.endswith(".json"):
        (tmp_path / "ahead-rank0.safetensors").unlink()
    for length in {0, 5, 9, len(whole) // 3, len(whole) // 2, len(whole) - 3}:
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(InputError, match=f"{name} is not what a run writes"):
            sampled_ahead.load(tmp_path, 0)


def test_another_safetensors_file_is_bad_input(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    for metadata in (None, {"ascent.ahead": '[{"prompt": 0}]'}):
        save_file({"token_ids": np.zeros(3)}, tmp_path / "ahead-rank0.safetensors", metadata=metadata)
        with pytest.raises(InputError, match="is not what a run writes"):
            sampled_ahead.load(tmp_path, 0)
