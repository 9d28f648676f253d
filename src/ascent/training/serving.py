"""The sampling servers of a run: started for it, or standing already."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace

from accelerate.utils import broadcast_object_list

from ascent import devices
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.rollout.platform import engine_kind
from ascent.rollout.server import ServerEngine
from ascent.rollout.service.address import ServiceAddress, find_service, remote_service
from ascent.rollout.service.running import ServiceStartError, running_service
from ascent.rollout.service.settings import ServiceSettings
from ascent.rollout.vllm_plugin import SHM_BACKEND, WORKER_EXTENSION
from ascent.rollout.weights.choice import choose, transport
from ascent.rollout.weights.delivery import WeightDelivery
from ascent.tracking.run_directory import RunDirectory

_OWN_DEVICE_SHARE = 0.9  # of a device that nobody else uses; vLLM's own default


@contextlib.contextmanager
def serving(
    config: RunConfig, engine: EngineSettings, run: RunDirectory, *, rank: int, processes: int
) -> Iterator[RolloutEngine]:
    """The engine of a run whose completions are sampled by servers. Collective over all processes of the training.

    Rank 0 starts the servers, or finds those that stand, and holds them; the others join. Raises InputError for a
    service that isn't there, is held by another training, or does not start.
    """
    with contextlib.ExitStack() as stack:
        shared: list[tuple[ServiceAddress, str] | None] = [None]
        if rank == 0:
            address = stack.enter_context(_service(config, engine, run, processes))
            delivery = stack.enter_context(contextlib.closing(_delivery(config, address, engine.dtype)))
            served = ServerEngine(address, delivery, holder_name=run.path.name)
            shared = [(address, served.hold)]
        if processes > 1:
            broadcast_object_list(shared)
        if rank != 0:
            assert shared[0] is not None
            address, hold = shared[0]
            served = ServerEngine(address, None, holder_name=run.path.name, hold=hold, sends_weights=False)
        stack.callback(served.close)
        if served.max_model_len < engine.max_model_len:
            raise InputError(
                f"service {address.name} has a context of {served.max_model_len} tokens, but prompts and completions "
                f"of this run need {engine.max_model_len}",
                "Start it with a larger --max-model-len, or lower trainer.max_completion_length.",
            )
        yield served


def _delivery(config: RunConfig, address: ServiceAddress, dtype: str) -> WeightDelivery:
    backend = address.transport or _backend(config, same_host=False)
    dtype = address.dtype or dtype
    return WeightDelivery(transport(backend, dtype, str(devices.current())), dtype, verify=config.rollout.verify)


def _backend(config: RunConfig, *, same_host: bool) -> str:
    """vLLM's name of the weight-transfer engine that the servers load."""
    asked = config.rollout.transport
    if asked != "auto":
        return SHM_BACKEND if asked == "shm" else asked
    import vllm

    choice = choose(
        engine_kind(),
        vllm_version=vllm.__version__,
        same_host=same_host,
        tensor_parallel=config.rollout.tensor_parallel_size,
    )
    print(f"weights travel by {choice.backend}: {choice.reason}", file=sys.stderr, flush=True)
    return choice.backend


@contextlib.contextmanager
def _service(config: RunConfig, engine: EngineSettings, run: RunDirectory, processes: int) -> Iterator[ServiceAddress]:
    named = config.rollout.server
    if named is None:
        with _own_service(config, engine, run, processes) as address:
            yield address
    elif "://" in named:
        yield remote_service(named.split(","), os.environ.get("ASCENT_API_KEY", ""))
    else:
        yield find_service(named)


@contextlib.contextmanager
def _own_service(
    config: RunConfig, engine: EngineSettings, run: RunDirectory, processes: int
) -> Iterator[ServiceAddress]:
    rollout, kind = config.rollout, engine_kind()
    settings = ServiceSettings(
        replace(
            engine,
            external_launcher=False,
            max_num_seqs=rollout.max_num_seqs or engine.max_num_seqs * processes,
            engine_share=_OWN_DEVICE_SHARE,
        ),
        kind,
        replicas=rollout.replicas,
        tensor_parallel=rollout.tensor_parallel_size,
        devices=() if kind == "cpu" else config.server_devices(processes),
        transport=_backend(config, same_host=True),
        worker_extension=WORKER_EXTENSION,
        max_restarts=rollout.max_restarts,
        restart_window=60.0 * rollout.restart_window_minutes,
    )
    try:
        with running_service(
            settings, name=f"{run.path.name}-{os.getpid()}", log_folder=run.path / "servers"
        ) as address:
            yield address
    except ServiceStartError as error:
        print(error.log_text, file=sys.stderr)
        raise InputError(f"rollout.mode=server: {error}", "The end of its log is shown above.") from error
