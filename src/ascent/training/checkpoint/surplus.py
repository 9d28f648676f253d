"""Groups with signal that are left for the next generation, kept with a checkpoint with their scores.

A rank's groups are one safetensors file: their completions as `sampled_ahead` keeps them, one group after the other,
`rewards` (completions x functions, float32), and JSON in the metadata for what else there is. What reward functions
asked to be logged is kept as text where JSON has no form for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ascent.errors import InputError
from ascent.sandbox.types import Outcome, Verdict
from ascent.training.batches.drawing.filled import completions_of
from ascent.training.batches.drawing.refill import Refill
from ascent.training.batches.drawing.scored_group import GroupRewards, ScoredGroup
from ascent.training.checkpoint.sampled_ahead import packed, unpacked
from ascent.types import Completion, Score


def save(checkpoint: Path, rank: int, groups: Sequence[ScoredGroup]) -> None:
    """Write a rank's groups, at least one, into a checkpoint's folder."""
    tensors, rows = packed(completions_of(groups))
    tensors["rewards"] = np.concatenate([group.rewards.by_function.numpy() for group in groups])
    about = {"completions": rows, "groups": [_about(group) for group in groups]}
    save_file(tensors, _file(checkpoint, rank), metadata={"ascent.surplus": json.dumps(about, default=str)})


def load(checkpoint: Path, rank: int, refill: Refill) -> tuple[ScoredGroup, ...]:
    """A rank's groups; none where none were left. Their rows are read from the dataset again. Raises InputError for a
    file that can't be understood."""
    file = _file(checkpoint, rank)
    if not file.is_file():
        return ()
    try:
        with safe_open(file, framework="numpy") as opened:
            about = json.loads(opened.metadata()["ascent.surplus"])
            completions = unpacked(opened.get_tensor, about["completions"])
            rewards_BF = torch.from_numpy(opened.get_tensor("rewards"))
        found = []
        for kept in about["groups"]:
            own, completions = completions[: kept["size"]], completions[kept["size"] :]
            own_GF, rewards_BF = rewards_BF[: kept["size"]], rewards_BF[kept["size"] :]
            found.append(_group(kept, own, own_GF, refill))
        return tuple(found)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error


def _about(group: ScoredGroup) -> dict[str, Any]:
    rewards = group.rewards
    return {
        "size": len(group.completions),
        "index": group.drawn_index,
        "answers": group.answers,
        "scores": [asdict(score) for score in rewards.scores],
        "seconds": rewards.seconds,
        "columns": rewards.columns,
        "metrics": rewards.metrics,
    }


def _group(
    kept: Mapping[str, Any], completions: Sequence[Completion], rewards_GF: torch.Tensor, refill: Refill
) -> ScoredGroup:
    group = refill.prompts.groups([kept["index"]], "")[0]
    request = replace(group.request, group_id=completions[0].group_id, prompt_ids=completions[0].prompt_ids)
    scores = tuple(Score(**{**each, "verdict": _verdict(each["verdict"])}) for each in kept["scores"])
    metrics = [(str(name), float(value)) for name, value in kept["metrics"]]
    rewards = GroupRewards(rewards_GF, scores, kept["seconds"], kept["columns"], metrics)
    group = replace(group, request=request)
    return ScoredGroup(group, kept["index"], tuple(completions), tuple(kept["answers"]), rewards)


def _verdict(kept: Mapping[str, Any] | None) -> Verdict | None:
    return None if kept is None else Verdict(**{**kept, "outcomes": tuple(map(Outcome, kept["outcomes"]))})


def _file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"surplus-rank{rank}.safetensors"
