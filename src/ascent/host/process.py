"""What a process needs before it imports torch, transformers or vLLM. Imports nothing heavy until asked."""

from __future__ import annotations

import logging
import os
import warnings

_ENVIRONMENT = {
    # Waiting threads give way: a busy neighbour (a sandbox slot) otherwise makes sampling several times slower.
    "OMP_WAIT_POLICY": "passive",
    # vllm-ascend takes new weights only in the ordinary layout.
    "VLLM_ASCEND_ENABLE_NZ": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


_NEEDED = ("OMP_WAIT_POLICY", "VLLM_ASCEND_ENABLE_NZ")  # the others only keep libraries quiet


def set_up_process(*, debug: bool = False, on_cpu: bool = False) -> None:
    """Set what the libraries read when they are imported; what the user has set stays. With `debug` they may talk.

    With `on_cpu` this process and those it starts train on CPU, whatever accelerators there are.
    """
    if on_cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    for name, value in _ENVIRONMENT.items():
        if name in _NEEDED or not debug:
            os.environ.setdefault(name, value)
    if debug:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
        return
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # says that a GPU compiler is absent


def quieten_transformers(*, debug: bool = False) -> None:
    """No progress bars from transformers; imports it."""
    if debug:
        return
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
