"""One of two processes over gloo, for test_packed_ranks: `torchrun packed_ranks.py FOLDER`.

Each rank has other rows. For each wrapper and way the gradient that the ranks share is compared with TRL's, of all rows
in one process; how far they are apart, and how often the layers ran, is written to FOLDER/RANK.json.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from tests.training.batches.equality import relative
from tests.training.batches.tiny_models import build, padded, ragged, trl_pass
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ascent.host.ending import end_at_once
from ascent.training.batches.passes.packed_forward import PackedForward

RANK = int(os.environ["RANK"])
NOTHING: Any = [([5, 6], []), ([7], [])]
BATCHES: dict[str, list[Any]] = {
    "both": [ragged(1), ragged(2, groups=5)],
    "one has nothing": [ragged(3), NOTHING],
    "one has a hole": [ragged(4), ragged(5)],
}
WAYS = {"replicated": ("off", "rows", "cache"), "sharded": ("off", "rows"), "checkpointed": ("rows",)}


def batches_of(name: str) -> list[Any]:
    made = [padded(rows, width=14) for rows in BATCHES[name]]
    if name == "one has a hole":  # TRL's pass on that rank
        made[1][1][0, -made[1][2] - 2] = 0
    return made


def backward(function: Any, model: Any, batch: Any) -> None:
    logps_BC, entropies_BC = function(model, *batch, compute_entropy=True)
    (logps_BC + 0.1 * entropies_BC).sum().backward()


def expected(batches: list[Any]) -> dict[str, torch.Tensor]:
    """Mean of the ranks' gradients."""
    model = build("qwen3")
    for batch in batches:
        backward(trl_pass, model, batch)
    return {name: value.grad / len(batches) for name, value in model.named_parameters()}


def wrapped(kind: str) -> tuple[Any, Any]:
    model = build("qwen3")
    if kind == "replicated":
        return DistributedDataParallel(model), model
    if kind == "checkpointed":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model, model


def count(runs: list[int], *_: Any) -> None:
    runs.append(1)


def unwrapped(bare: Any, _: Any) -> Any:
    return bare


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {
        name: value.grad.full_tensor() if hasattr(value.grad, "full_tensor") else value.grad.clone()
        for name, value in model.named_parameters()
    }


def main() -> None:
    torch.distributed.init_process_group("gloo")
    found: dict[str, Any] = {}
    for name in BATCHES:
        batches = batches_of(name)
        wanted = expected(copy.deepcopy(batches))
        for kind, ways in WAYS.items():
            for way in ways:
                model, bare = wrapped(kind)
                runs: list[int] = []
                bare.model.layers[0].register_forward_pre_hook(functools.partial(count, runs))
                setting: Any = way
                packed = PackedForward(trl_pass, shared_prompt=setting, unwrap=functools.partial(unwrapped, bare))
                backward(packed.logps, model, batches[RANK])
                first = len(runs)
                model.zero_grad()
                backward(packed.logps, model, batches[RANK])
                found[f"{kind}, {way}, {name}"] = {
                    "apart": relative(gradients(bare), wanted),
                    "runs": (first, len(runs) - first),
                    "way": packed.take_works()[-1].way,
                }
    Path(sys.argv[1], f"{RANK}.json").write_text(json.dumps(found))
    end_at_once(0)


if __name__ == "__main__":
    main()
