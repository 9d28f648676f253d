"""Parameters that are one and the same, and the output head that vLLM's CPU platform packs apart from its embedding.

Loaded inside vLLM's processes: the standard library and torch only.
"""

from __future__ import annotations

from typing import Any


def pack_again(model: Any) -> None:
    """Pack the head from its present weight: vLLM's layer-wise reload forgets the packed copy of a tied head."""
    for path, module in model.named_modules():
        if path.rpartition(".")[2] == "lm_head" and getattr(module, "quant_method", None) is not None:
            module.quant_method.process_weights_after_loading(module)


def tied_names(model: Any) -> set[str]:
    """Names of parameters that are another parameter: they are not in the checkpoint."""
    first: dict[int, str] = {}
    tied = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied.add(name)
    return tied


def is_packed(model: Any) -> bool:
    """Whether the platform keeps weights in a form of its own and left parameters empty."""
    return not all(parameter.numel() for parameter in model.parameters())
