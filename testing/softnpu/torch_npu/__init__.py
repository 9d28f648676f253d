"""A software NPU under the name of Ascend's torch plug-in: torch's device `npu` on host memory, for tests.

torch loads it through the entry point `torch.backends` wherever this folder's parent is on PYTHONPATH. What it is, and
what it can't show, is in the README beside the sources.
"""

from __future__ import annotations

import atexit
import os

_autoload_was = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = (
    "0"  # `import torch_npu` before torch: torch must not load this module again
)
import torch  # noqa: E402

if _autoload_was is None:
    del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
else:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = _autoload_was

torch.utils.rename_privateuse1_backend("npu")

from torch_npu import _C as _C  # noqa: E402
from torch_npu import npu as npu  # noqa: E402
from torch_npu._fusion_attention import npu_fusion_attention as npu_fusion_attention  # noqa: E402
from torch_npu._hccl import register as _register_hccl  # noqa: E402
from torch_npu.version import __version__ as __version__  # noqa: E402

torch._register_device_module("npu", npu)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
torch.version.cann = "none (software NPU)"  # type: ignore[attr-defined]
_register_hccl()


@atexit.register
def _drain_autograd() -> None:
    # A thread that frees Python objects while the interpreter ends is ended too, and takes the process with it.
    if npu.is_initialized():
        _C.drain_autograd()


def _autoload() -> None:
    """The entry point. Loading the module has done the work."""
