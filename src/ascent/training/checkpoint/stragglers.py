"""Groups that were broken off when a generation was closed, kept with a checkpoint: a resumed run goes on with them.

A rank's groups are one safetensors file: their completions as `sampled_ahead` keeps them, one group after the other,
those that ended before those that were broken off; and JSON in the metadata for what else there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ascent.errors import InputError
from ascent.training.batches.drawing.prompts import Drawn
from ascent.training.batches.drawing.refill import Refill
from ascent.training.batches.drawing.stragglers import Straggler
from ascent.training.checkpoint.sampled_ahead import packed, unpacked
from ascent.training.step.groups import Begun
from ascent.types import Completion


def save(checkpoint: Path, rank: int, stragglers: Sequence[Straggler]) -> None:
    """Write a rank's groups, at least one, into a checkpoint's folder."""
    tensors, rows = packed([each for straggler in stragglers for each in _completions(straggler)])
    about = {"completions": rows, "groups": [_about(each) for each in stragglers]}
    save_file(tensors, _file(checkpoint, rank), metadata={"ascent.stragglers": json.dumps(about)})


def load(checkpoint: Path, rank: int, refill: Refill) -> tuple[Straggler, ...]:
    """A rank's groups; none where none were broken off. Their rows are read from the dataset again. Raises InputError
    for a file that can't be understood."""
    file = _file(checkpoint, rank)
    if not file.is_file():
        return ()
    try:
        with safe_open(file, framework="numpy") as opened:
            about = json.loads(opened.metadata()["ascent.stragglers"])
            completions = unpacked(opened.get_tensor, about["completions"])
        found = []
        for kept in about["groups"]:
            size = len(kept["texts"]) + kept["parts"]
            own, completions = completions[:size], completions[size:]
            found.append(_straggler(kept, own, refill))
        return tuple(found)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error


def _completions(straggler: Straggler) -> Sequence[Completion]:
    begun = straggler.group.begun
    return () if begun is None else (*begun.ended, *begun.parts)


def _about(straggler: Straggler) -> dict[str, Any]:
    texts = [text for _, text in sorted(straggler.texts.items())]
    return {
        "index": straggler.drawn.index,
        "place": straggler.drawn.place,
        "age": straggler.age,
        "seed": straggler.group.request.seed,
        "texts": texts,
        "parts": len(_completions(straggler)) - len(texts),
    }


def _straggler(kept: Mapping[str, Any], completions: Sequence[Completion], refill: Refill) -> Straggler:
    count = len(kept["texts"])
    ended, parts = tuple(completions[:count]), tuple(completions[count:])
    group = refill.prompts.groups([kept["index"]], "")[0]
    if {each.index for each in completions} != set(range(group.request.n)):
        raise ValueError(f"{len(completions)} completions of a group of {group.request.n}")
    first = completions[0]
    request = replace(group.request, group_id=first.group_id, prompt_ids=first.prompt_ids, seed=kept["seed"])
    texts = {each.index: str(text) for each, text in zip(ended, kept["texts"], strict=True)}
    group = replace(group, request=request, begun=Begun(ended, parts))
    return Straggler(group, Drawn(kept["place"], kept["index"]), texts, kept["age"])


def _file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"stragglers-rank{rank}.safetensors"
