"""A generation that was sampled ahead, kept with a checkpoint: a resumed run trains on the very same completions.

Each rank keeps its own in a safetensors file. Two completions of 3 and 2 tokens, of one prompt of 4, are

    token_ids (5,) int32    token_lengths (2,) [3, 2]
    logps (5,) float32      logp_lengths (2,) [3, 2]
    prompt_ids (4,) int32   prompt_lengths (1,) [4]

and JSON in the file's metadata: for each completion its prompt's number and what else it holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ascent.errors import InputError
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Completion

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OTHERS = ("group_id", "index", "finish_reason", "weight_version")


def save(checkpoint: Path, rank: int, completions: Sequence[Completion]) -> None:
    """Write a rank's completions into a checkpoint's folder, which need not exist yet."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    tensors, rows = packed(completions)
    save_file(tensors, _file(checkpoint, rank), metadata={"ascent.ahead": json.dumps(rows)})


def packed(completions: Sequence[Completion]) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Completions as tensors for a safetensors file, and what else they hold, for JSON."""
    numbers: dict[tuple[int, ...], int] = {}  # of the prompts
    rows = [
        {
            "prompt": numbers.setdefault(each.prompt_ids, len(numbers)),
            "seconds": each.finished_at - each.submitted_at,
            "spans": each.weight_spans,
            **{name: getattr(each, name) for name in _OTHERS},
        }
        for each in completions
    ]
    tensors = {
        **_joined("prompt", "prompt_ids", [np.array(prompt, np.int32) for prompt in numbers]),
        **_joined("token", "token_ids", [each.token_ids for each in completions]),
        **_joined("logp", "logps", [each.logps for each in completions]),
    }
    return tensors, rows


def load(checkpoint: Path, rank: int) -> list[Completion]:
    """A rank's completions; none where nothing was on its way. Raises InputError for a file that can't be understood.

    The clock of the process that sampled them is gone: their times keep their length and end now.
    """
    file, former = _file(checkpoint, rank), checkpoint / f"ahead-rank{rank}.json"
    try:
        if file.is_file():
            return _read(file)
        return _read_former(former) if former.is_file() else []
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        found = file if file.is_file() else former
        raise InputError(f"{found} is not what a run writes: {type(error).__name__}: {error}") from error


def _file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"ahead-rank{rank}.safetensors"


def _joined(kind: str, name: str, arrays: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    lengths = np.array([len(array) for array in arrays], np.int64)
    return {name: np.concatenate(arrays) if arrays else np.zeros(0, np.int32), f"{kind}_lengths": lengths}


def _read(file: Path) -> list[Completion]:
    with safe_open(file, framework="numpy") as opened:
        return unpacked(opened.get_tensor, json.loads(opened.metadata()["ascent.ahead"]))


def unpacked(tensor: Callable[[str], Any], rows: Sequence[Mapping[str, Any]]) -> list[Completion]:
    """The completions that were `packed`; `tensor` gives one of their tensors by its name."""
    prompts, token_ids, logps = (
        np.split(tensor(name), tensor(f"{kind}_lengths").cumsum())[:-1]
        for kind, name in (("prompt", "prompt_ids"), ("token", "token_ids"), ("logp", "logps"))
    )
    prompt_ids = [tuple(prompt.tolist()) for prompt in prompts]
    return [
        _completion(row, prompt_ids[row["prompt"]], ids, at)
        for row, ids, at in zip(rows, token_ids, logps, strict=True)
    ]


def _read_former(file: Path) -> list[Completion]:
    """What earlier releases wrote: JSON, a completion's fields by name."""
    rows = json.loads(file.read_text(encoding="utf-8"))["completions"]
    for row in rows:
        row["seconds"] = row["finished_at"] - row["submitted_at"]
    return [_completion(row, tuple(row["prompt_ids"]), row["token_ids"], row["logps"]) for row in rows]


def _completion(
    row: Mapping[str, Any],
    prompt_ids: tuple[int, ...],
    token_ids: Sequence[int] | NDArray[Any],
    logps: Sequence[float | None] | NDArray[Any],
) -> Completion:
    now = time.monotonic()
    return Completion(
        prompt_ids=prompt_ids,
        token_ids=as_token_ids(token_ids),
        logps=as_logps(logps),
        submitted_at=now - row["seconds"],
        finished_at=now,
        weight_spans=tuple((start, version) for start, version in row.get("spans", ())),
        **{name: row[name] for name in _OTHERS},
    )
