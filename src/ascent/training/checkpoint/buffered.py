"""The generation that a checkpoint falls into, so that a resumed run trains on what is left of it.

TRL keeps a sampled generation as `steps_per_generation` slices, each a dict of tensors, and takes them in turn,
`num_iterations` times over. Each rank keeps its own slices in a file of the checkpoint: safetensors, in which slice 2's
`advantages` is the tensor `2/advantages`.

An example: `num_iterations: 2`, `steps_per_generation: 2`, one micro-batch a step, killed after step 5 whose checkpoint
is the last. A generation feeds four steps:

    step        1 2 3 4 | 5 6 7 8        generation 0 feeds steps 1 to 4, generation 1 steps 5 to 8
    slice       0 1 0 1 | 0 1 0 1
    checkpoint          5                micro_step 5: it falls into generation 1, whose two slices are kept

The resumed run loads both slices and takes slice 1 for step 6, as the unbroken run did; it samples again at step 9.
Without them generation 1 would be sampled once more with the weights of step 5, and every later number would shift.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ascent.errors import InputError
from ascent.training.step.ranks import Ranks

Slice = dict[str, Any]  # TRL's name -> tensor, or None


@dataclass(frozen=True, slots=True)
class Layout:
    """What must be as it was for the slices to be what a run asks for."""

    ranks: int
    per_device_train_batch_size: int
    steps_per_generation: int
    num_iterations: int

    @classmethod
    def of(cls, args: Any) -> Layout:
        """That of a `GRPOConfig`."""
        slices = int(args.steps_per_generation or 1)
        return cls(args.world_size, args.per_device_train_batch_size, slices, args.num_iterations)


def save(checkpoint: Path, slices: Sequence[Slice], args: Any) -> None:
    """Write this rank's slices into a checkpoint's folder. `args` is the training's GRPOConfig."""
    tensors, others = {}, {}
    for number, each in enumerate(slices):
        for name, value in each.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{number}/{name}"] = value.detach().to("cpu", copy=True).contiguous()
            else:
                others[f"{number}/{name}"] = value
    about = {"layout": asdict(Layout.of(args)), "others": others}
    save_file(tensors, _file(checkpoint, args.process_index), metadata={"ascent.buffered": json.dumps(about)})


def load(checkpoint: Path, args: Any, ranks: Ranks, tell: Callable[[str], None]) -> list[Slice] | None:
    """This rank's slices, on the device of `args`; None, and a note through `tell`, where the generation must be
    sampled again: the checkpoint has none, or those of another layout. All ranks get theirs, or none. Collective.

    Raises InputError for a file that can't be understood.
    """
    layout, device = Layout.of(args), args.device
    slices, kept_layout = _read(_file(checkpoint, ranks.rank), device)
    if not ranks.any_rank(kept_layout != layout):
        return slices
    if ranks.rank == 0:
        why = "the checkpoint doesn't hold it" if kept_layout is None else f"it was {kept_layout}, and is {layout}"
        tell(f"note: the checkpoint falls into a generation, which is sampled again: {why}")
    return None


def _read(file: Path, device: torch.device) -> tuple[list[Slice], Layout | None]:
    if not file.is_file():
        return [], None
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            about = json.loads(opened.metadata()["ascent.buffered"])
            layout = Layout(**about["layout"])
            slices: list[Slice] = [{} for _ in range(layout.steps_per_generation)]
            values = {name: opened.get_tensor(name).to(device) for name in opened.keys()}  # noqa: SIM118 - no mapping
            for place, value in (values | about["others"]).items():
                number, _, name = place.partition("/")
                slices[int(number)][name] = value
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error
    return slices, layout


def _file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"buffered-rank{rank}.safetensors"
