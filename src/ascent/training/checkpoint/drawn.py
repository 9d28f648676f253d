"""With dynamic sampling, or over-sampling: the place in the order of prompts, groups that are left over, and what is
known of each task.

Each rank has `drawn-rankN.json`, `surplus-rankN.safetensors` where groups are left over, and with over-sampling
`stragglers-rankN.safetensors` where groups were broken off; rank 0 writes `task-history.json`, which is of all ranks
and made to be read: for each task the share of solved completions in its last groups.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ascent.errors import InputError
from ascent.tracking.run_directory import write_json
from ascent.training.batches.drawing.history import History
from ascent.training.batches.drawing.prompts import PromptOrder
from ascent.training.batches.drawing.refill import Refill
from ascent.training.batches.drawing.state import RefillState
from ascent.training.checkpoint import stragglers, surplus

_HISTORY = "task-history.json"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A rank's part, as it stands in its file. `rows` and `ranks` are those of the order of prompts."""

    rows: int
    ranks: int
    place: int
    drop_share: float
    silent: int
    told_filled: bool


def save(checkpoint: Path, refill: Refill | None, state: RefillState | None) -> None:
    """Write this rank's part of the `state` into a checkpoint's folder; nothing without it."""
    if refill is None or state is None:
        return
    order = refill.order
    kept = _Kept(order.rows, order.ranks, state.place, state.drop_share, state.silent, state.told_filled)
    write_json(_file(checkpoint, order.rank), asdict(kept))
    if state.surplus:
        surplus.save(checkpoint, order.rank, state.surplus)
    if state.stragglers:
        stragglers.save(checkpoint, order.rank, state.stragglers)
    if order.rank == 0:
        history = state.history
        tasks = {task: list(shares) for task, shares in sorted(history.shares.items())}
        write_json(checkpoint / _HISTORY, {"lowest": history.lowest, "highest": history.highest, "tasks": tasks})


def load(checkpoint: Path, refill: Refill | None, tell: Callable[[str], None]) -> RefillState | None:
    """The state that a checkpoint kept, which is `refill`'s from now on; None without dynamic sampling.

    Where the number of ranks or rows is another one, prompts go on behind those that were drawn, groups that were left
    over are not used, and rank 0 tells so. Raises InputError for files that can't be understood.
    """
    if refill is None:
        return None
    order = refill.order
    files = sorted(checkpoint.glob("drawn-rank*.json"))
    if not files:
        if order.rank == 0:
            tell(
                "note: the checkpoint was made without dynamic sampling or over-sampling: prompts are drawn from the "
                "first on"
            )
        return refill.state
    known = {file: _read(file) for file in files}
    own = known.get(_file(checkpoint, order.rank), next(iter(known.values())))
    history = _history(checkpoint / _HISTORY)
    state = RefillState(own.place, (), (), own.drop_share, own.silent, own.told_filled, history)
    if (own.rows, own.ranks) == (order.rows, order.ranks):
        if len(files) != order.ranks:
            raise InputError(f"{checkpoint} should have {order.ranks} files drawn-rankN.json, and has {len(files)}")
        left = stragglers.load(checkpoint, order.rank, refill)
        state = replace(state, surplus=surplus.load(checkpoint, order.rank, refill), stragglers=left)
        refill.restart_rewards(left)
    else:
        state = replace(state, place=_behind(order, [kept.place for kept in known.values()]))
        if order.rank == 0:
            tell(
                f"note: the checkpoint's prompts were drawn by {own.ranks} processes from {own.rows} rows, now it is "
                f"{order.ranks} and {order.rows}: the next ones come from an order of their own"
            )
    refill.state = state
    return state


def _behind(order: PromptOrder, places: list[int]) -> int:
    """The place at which as many prompts have been drawn as by ranks that stand at `places`."""
    return math.ceil(sum(places) / order.ranks)


def _read(file: Path) -> _Kept:
    try:
        return _Kept(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error


def _history(file: Path) -> History:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        shares = {task: tuple(map(float, each)) for task, each in kept["tasks"].items()}
        return History(shares, kept["lowest"], kept["highest"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error


def _file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"drawn-rank{rank}.json"
