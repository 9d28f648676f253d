"""What TRL's own path (`plain=True`) can't do on an NPU; Ascent's path doesn't use it.

- `vllm_mode="server"`: `VLLMClient.init_communicator` refuses every device but CUDA (TRL 1.16), after vLLM and the
  model have been started.
- `use_transformers_continuous_batching`: its cache is sized by the host's memory (transformers 5.8 to 5.17), which is
  usually more than the device has.
"""

from __future__ import annotations

from typing import Any

from ascent import devices
from ascent.errors import InputError


def refuse_on_npu(args: Any) -> None:
    """Raise InputError for settings of a TRL `GRPOConfig` that fail late, or run out of memory, on an NPU."""
    if devices.kind() != "npu":
        return
    if args.use_vllm and args.vllm_mode == "server":
        raise InputError(
            'vllm_mode="server" with plain=True: TRL can send weights to a server from CUDA devices only',
            'Leave plain out: Ascent sends weights to its own servers (docs/serving.md). Or take vllm_mode="colocate".',
        )
    if getattr(args, "use_transformers_continuous_batching", False):
        raise InputError(
            "use_transformers_continuous_batching: on an NPU transformers sizes its cache by the host's memory",
            "Leave it out, or sample with vLLM.",
        )
