"""In a process of its own: a training with a bad step. `python -m ascent.selftest.bad_step_child FOLDER`.

What became of it is written to FOLDER/bad-step.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_BAD, _STEPS = 2, 3


def main(folder: Path) -> None:
    """Train, and write what became of the step."""
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process()
    quieten_transformers()
    found = train(folder / "policy", folder / "bad-step-output")
    (folder / "bad-step.json").write_text(json.dumps(found), encoding="utf-8")


def train(policy: Path, output: Path) -> dict[str, Any]:
    """Whether weights are finite, how many steps were bad, what was named and whether it is where NaN was planted,
    whether overflow gives infinity, and the guard's share of a good step's seconds."""
    import torch

    from ascent import devices

    trainer = _trainer(policy, output)
    planted = trainer.model.get_submodule("model.layers.0.mlp")
    name = next(each for each, module in trainer.model.named_modules() if module is planted)

    def spoil(_: Any, __: Any, result: torch.Tensor) -> torch.Tensor:
        bad = trainer.state.global_step + 1 == _BAD and torch.is_grad_enabled()
        return result * torch.nan if bad else result

    handle = planted.register_forward_hook(spoil, prepend=True)
    guard, seconds = trainer._numerics.guard, [0.0]
    refuses = guard.refuses

    def timed(*args: Any) -> bool:
        devices.synchronize()
        began = time.perf_counter()
        refused: bool = refuses(*args)
        seconds[0] += time.perf_counter() - began
        return refused

    guard.refuses = timed
    began = time.perf_counter()
    trainer.train()
    whole = time.perf_counter() - began
    handle.remove()
    about = json.loads((output / "bad-steps" / str(_BAD) / "step.json").read_text(encoding="utf-8"))
    half = torch.full((2, 2), 300.0, dtype=torch.float16, device=devices.current())
    return {
        "finite": all(bool(each.isfinite().all()) for each in trainer.model.parameters()),
        "bad_steps": guard.bad_steps,
        "planted": name,
        "where": about["finding"]["where"],
        "named": about["finding"]["where"] == name,
        "infinite": bool((half @ half).isinf().all()),
        "share": seconds[0] / whole,
    }


def _trainer(policy: Path, output: Path) -> Any:
    from datasets import Dataset

    from ascent import devices
    from ascent.training.arguments import GRPOConfig
    from ascent.training.trainer import GRPOTrainer

    config = GRPOConfig(
        str(output),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=8,
        max_steps=_STEPS,
        bf16=devices.supports_bf16(),
        use_cpu=devices.kind() == "cpu",
        report_to="none",
        save_strategy="no",
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    rows = [{"prompt": f"def f{number}(a):"} for number in range(8)]
    return GRPOTrainer(
        str(policy),
        lambda completions, **_: [float(len(set(text))) for text in completions],
        config,
        train_dataset=Dataset.from_list(rows),
        engine="transformers",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
