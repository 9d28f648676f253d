"""Loaded inside every vLLM process (entry point `vllm.general_plugins`): the standard library, torch and vllm only."""

from __future__ import annotations

SHM_BACKEND, HTTP_BACKEND = "ascent_shm", "ascent_http"
WORKER_EXTENSION = "ascent.rollout.in_vllm.worker_extension.AscentWorkerExtension"  # for --worker-extension-cls


def register() -> None:
    """Called by vLLM in its front end, engine core and workers, possibly several times in one process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from ascent.rollout.in_vllm.compat import seeded_prefill, speculative_temperature

    seeded_prefill.mend()
    speculative_temperature.mend()
    for backend, module, engine in (
        (SHM_BACKEND, "shm_receiver", "ShmWeightTransferEngine"),
        (HTTP_BACKEND, "http_receiver", "HttpWeightTransferEngine"),
    ):
        if backend not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(backend, f"ascent.rollout.in_vllm.{module}", engine)
