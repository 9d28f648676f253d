"""Loaded inside every vLLM process (entry point `vllm.general_plugins`): the standard library, torch and vllm only."""

from __future__ import annotations

SHM_BACKEND = "ascent_shm"
WORKER_EXTENSION = "ascent.rollout.in_vllm.worker_extension.AscentWorkerExtension"  # for --worker-extension-cls


def register() -> None:
    """Called by vLLM in its front end, engine core and workers, possibly several times in one process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from ascent.rollout.in_vllm.compat import seeded_prefill, speculative_temperature

    seeded_prefill.mend()
    speculative_temperature.mend()
    if SHM_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            SHM_BACKEND, "ascent.rollout.in_vllm.shm_receiver", "ShmWeightTransferEngine"
        )
