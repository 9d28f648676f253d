"""vllm-ascend 0.23's weight transfer, as far as a trainer meets it: its names, arguments and manners on host memory.

What stands here is checked against the released files by tests/environment/test_contracts.py. `install` puts it in the
place of the package, in the trainer's process and in that of a stand-in server (`server.py`).
"""

from __future__ import annotations

import sys
import types


def install() -> None:
    """Make `vllm_ascend.distributed.weight_transfer` importable."""
    from tests.rollout.weights.ascend import hccl_engine, npu_ipc_engine

    for name in ("vllm_ascend", "vllm_ascend.distributed", "vllm_ascend.distributed.weight_transfer"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["vllm_ascend.distributed.weight_transfer.hccl_engine"] = hccl_engine
    sys.modules["vllm_ascend.distributed.weight_transfer.npu_ipc_engine"] = npu_ipc_engine


def uninstall() -> None:
    """Undo `install`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_ascend"]:
        del sys.modules[name]
