"""In a process of its own: packed sequences against padded rows. `python -m ascent.selftest.packing_child FOLDER`.

The figures are written to FOLDER/packing.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_LENGTHS = tuple(8 + 37 * number % 90 for number in range(32))  # of sequences, their prompts included
_PROMPT = 6


def main(folder: Path) -> None:
    """Measure, and write what was measured."""
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process()
    quieten_transformers()
    (folder / "packing.json").write_text(json.dumps(compare(folder / "policy")), encoding="utf-8")


def compare(policy: Path) -> dict[str, Any]:
    """Mean difference of log-probabilities, relative difference of the gradient, seconds of both, and `apart`: None, or
    what kept the sequences from being apart. Only `absent` where there is no flash attention."""
    import torch
    from trl.trainer.utils import add_fused_lm_head

    from ascent import devices
    from ascent.training.batches.passes.padding_free import PaddingFreeForward
    from ascent.training.batches.passes.padding_free_support import mixing, refusal
    from ascent.training.sampling_check import load_policy

    model = load_policy(policy, "bfloat16")
    try:
        model.set_attn_implementation("flash_attention_2")
    except (ImportError, ValueError) as error:
        return {"absent": f"transformers has no flash attention here: {error}"}
    add_fused_lm_head(model)
    forward = PaddingFreeForward()
    apart = refusal(model) or mixing(model, forward)
    ids_BL, mask_BL = _batch(model.config.vocab_size, devices.current())
    kept = ids_BL.shape[1] - _PROMPT

    def padded() -> Any:
        labels_BL = ids_BL.masked_fill(mask_BL == 0, -100)
        labels_BL[:, :_PROMPT] = -100
        outputs = model(input_ids=ids_BL, attention_mask=mask_BL, labels=labels_BL, fused_lm_head=True)
        return outputs.log_probs[:, -kept:]

    theirs, their_gradient, their_seconds = _timed(model, padded)
    mine, my_gradient, my_seconds = _timed(model, lambda: forward.logps(model, ids_BL, mask_BL, kept)[0])
    scored = int(mask_BL[:, _PROMPT:].sum())
    return {
        "apart": apart,
        "logps": float((mine - theirs).abs().sum() / scored),
        "gradient": float(torch.linalg.norm(my_gradient - their_gradient) / torch.linalg.norm(their_gradient)),
        "padded seconds": their_seconds,
        "packed seconds": my_seconds,
    }


def _batch(vocabulary: int, device: Any) -> tuple[Any, Any]:
    """Ids and mask (B, L) of sequences of `_LENGTHS` tokens, padded on the right."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(2, vocabulary, (len(_LENGTHS), max(_LENGTHS)), generator=generator)
    mask_BL = (torch.arange(max(_LENGTHS))[None] < torch.tensor(_LENGTHS)[:, None]).long()
    return (ids_BL * mask_BL).to(device), mask_BL.to(device)


def _timed(model: Any, compute: Any) -> tuple[Any, Any, float]:
    """Log-probabilities, the gradient of their sum as one float32 vector, and seconds of a second run of both."""
    import torch

    from ascent import devices

    seconds = 0.0
    for _ in range(2):
        model.zero_grad()
        devices.synchronize()
        begun = time.perf_counter()
        logps = compute()
        logps.sum().backward()
        devices.synchronize()
        seconds = time.perf_counter() - begun
    gradient = torch.cat([weight.grad.float().flatten() for weight in model.parameters() if weight.grad is not None])
    return logps.detach().float(), gradient, seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]))
