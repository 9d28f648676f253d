"""The sampling servers of a run: started for it, or standing already."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace

from ascent import devices
from ascent.config import RunConfig
from ascent.config.sections import RolloutSection
from ascent.errors import InputError
from ascent.rollout.engine import EngineLostError, EngineSettings, RolloutEngine, WeightSyncError
from ascent.rollout.engines.served.engine import ServedEngine
from ascent.rollout.in_vllm.plugin import WORKER_EXTENSION
from ascent.rollout.platform import engine_kind, installed_vllm
from ascent.rollout.service import placed, record
from ascent.rollout.service.address import ServiceAddress, standing_service
from ascent.rollout.service.running import ServiceStartError, running_service
from ascent.rollout.service.server_command import allows_pickled_handles
from ascent.rollout.service.settings import ServiceSettings
from ascent.rollout.service.sharing import shared_devices
from ascent.rollout.weights.adapter_delivery import AdapterDelivery, adapter_name
from ascent.rollout.weights.delivery import WeightDelivery
from ascent.rollout.weights.transports.base import Place
from ascent.rollout.weights.transports.choice import check_fits, choose, transport
from ascent.rollout.weights.transports.own_address import of_interface
from ascent.tracking.run_directory import RunDirectory
from ascent.training.step.agreement import Agreement
from ascent.training.step.ranks import Ranks

_OWN_DEVICE_SHARE = 0.9  # of a device that nobody else uses; vLLM's own default


@contextlib.contextmanager
def serving(
    config: RunConfig, engine: EngineSettings, run: RunDirectory, *, rank: int, processes: int
) -> Iterator[RolloutEngine]:
    """The engine of a run whose completions are sampled by servers. Collective over all processes of the training.

    Rank 0 starts the servers, or finds those that stand, and holds them; the others join. Raises InputError for a
    service that isn't there, is held by another training, or does not start.
    """
    agreement = Agreement(Ranks(rank, processes))
    with contextlib.ExitStack() as stack:
        with _all_or_none(agreement):
            address = stack.enter_context(_service(config, engine, run, processes)) if rank == 0 else None
        served = _join(
            address,
            config.rollout,
            engine.dtype,
            run.path.name,
            agreement,
            lora=config.model.lora is not None,
            interface=config.cluster.interface,
        )
        stack.callback(served.close)
        if served.max_model_len < engine.max_model_len:
            raise InputError(
                f"the service has a context of {served.max_model_len} tokens, but prompts and completions of this run "
                f"need {engine.max_model_len}",
                "Start it with a larger --max-model-len, or lower trainer.max_completion_length.",
            )
        yield served


def connect(
    service: str,
    *,
    dtype: str = "bfloat16",
    name: str = "training",
    rank: int = 0,
    processes: int = 1,
    adapter: bool = False,
) -> RolloutEngine:
    """The engine over a service that stands: its name on this machine, or the URLs of its servers, with commas.

    The API key of a service on another machine is taken from ASCENT_API_KEY. Collective over all processes.

    `name` is how the training shows in `ascent serve --status`, `dtype` that of servers on another machine. With
    `adapter` the training's own LoRA adapter goes to the servers, which other trainings then share. Close the engine to
    give the service back. Raises InputError for a service that isn't there or is held by another training.
    """
    agreement = Agreement(Ranks(rank, processes))
    with _all_or_none(agreement):
        address = standing_service(service) if rank == 0 else None
        if address is not None and (both := shared_devices(address, processes)):
            indices = ", ".join(map(str, both))
            print(f"note: service {address.name} is on this training's device {indices} too", file=sys.stderr)
    section = RolloutSection(mode="server", adapter=adapter)
    return _join(address, section, dtype, name, agreement, lora=adapter)


def _join(
    address: ServiceAddress | None,
    rollout: RolloutSection,
    dtype: str,
    name: str,
    agreement: Agreement,
    *,
    lora: bool,
    interface: str | None = None,
) -> ServedEngine:
    """Rank 0, which knows the address, holds the service; the others join it. `interface`: of this machine, at which
    servers reach it; None: found out."""
    served: ServedEngine | None = None
    shared: tuple[ServiceAddress, str, str | None] | None = None
    with _all_or_none(agreement):
        if address is not None:
            hold = secrets.token_hex(16)
            adapter = adapter_name(name, hold) if _goes_by_itself(rollout, address, lora=lora) else None
            delivery: WeightDelivery | AdapterDelivery
            if adapter is None:
                delivery = _delivery(rollout, address, dtype, agreement.ranks.count, interface)
            else:
                delivery = AdapterDelivery(adapter, address.dtype or dtype, verify=rollout.verify)
            served = ServedEngine(address, delivery, holder_name=name, dtype=dtype, hold=hold, adapter=adapter)
            shared = (address, hold, adapter)
    shared = agreement.ranks.exchange(shared)[0]
    with _all_or_none(agreement):
        if served is None:
            assert shared is not None
            address, hold, adapter = shared
            served = ServedEngine(
                address, None, holder_name=name, dtype=dtype, hold=hold, sends_weights=False, adapter=adapter
            )
    return served


def _goes_by_itself(rollout: RolloutSection, address: ServiceAddress, *, lora: bool) -> bool:
    """Whether the training's adapter goes to the servers without the weights under it, so that others share them."""
    wanted = bool(address.adapters) and lora if rollout.adapter is None else rollout.adapter
    if wanted and not lora:
        raise InputError("rollout.adapter=true, but the training has no LoRA adapter", "Give it model.lora.")
    if wanted and not address.adapters and address.folder is not None:
        raise InputError(
            f"rollout.adapter=true, but service {address.name} serves no adapters",
            "Start it with: ascent serve MODEL --adapters N",
        )
    return wanted


@contextlib.contextmanager
def _all_or_none(agreement: Agreement) -> Iterator[None]:
    """When one process can't do what is inside, all end with the same error instead of waiting for it."""
    failure: Exception | None = None
    try:
        yield
    except EngineLostError as error:
        failure = InputError(str(error), "Start the service again: ascent serve MODEL")
    except WeightSyncError as error:
        failure = InputError(str(error), "Choose another rollout.transport.")
    except Exception as error:  # noqa: BLE001 - raised on every rank
        failure = error
    agreement.raise_on_all_ranks(failure)


def _delivery(
    rollout: RolloutSection, address: ServiceAddress, dtype: str, processes: int, interface: str | None = None
) -> WeightDelivery:
    name = address.transport or remote_transport(rollout, processes)
    if rollout.transport not in ("auto", name):
        raise InputError(
            f"rollout.transport={rollout.transport}, but service {address.name} takes its weights by {name}",
            f"Leave rollout.transport out, or start the service with --transport {rollout.transport}.",
        )
    dtype = address.dtype or dtype
    here = None if interface is None else of_interface(interface)
    return WeightDelivery(transport(name, dtype, str(devices.current()), address=here), dtype, verify=rollout.verify)


def own_transport(config: RunConfig, processes: int) -> str:
    """How weights reach the run's own servers, by the configuration's name of it. Raises InputError where the one that
    it asks for can't."""
    rollout, kind = config.rollout, engine_kind()
    place = Place(
        kind,
        vllm_version=installed_vllm(),
        same_host=True,
        trainer_kind=devices.kind(),
        shares_device=_shares_device(config, processes),
        trainer_processes=processes,
        workers=rollout.replicas * rollout.tensor_parallel_size,
        allows_pickled_handles=allows_pickled_handles(os.environ),
    )
    return _transport(rollout, place)


def remote_transport(rollout: RolloutSection, processes: int) -> str:
    """How weights reach servers on another machine, which are taken to be of this machine's kind."""
    place = Place(
        engine_kind(),
        vllm_version=installed_vllm(),
        same_host=False,
        trainer_kind=devices.kind(),
        trainer_processes=processes,
    )
    return _transport(rollout, place)


def _transport(rollout: RolloutSection, place: Place) -> str:
    if rollout.transport != "auto":
        check_fits(rollout.transport, place)
        return rollout.transport
    choice = choose(place)
    print(f"weights travel by {choice.name}: {choice.reason}", file=sys.stderr, flush=True)
    return choice.name


def _shares_device(config: RunConfig, processes: int) -> bool:
    """Whether a server of the run's own has a device that the training has too: it takes the first ones, one each."""
    kind = engine_kind()
    return kind != "cpu" and kind == devices.kind() and min(config.server_devices(processes)) < processes


@contextlib.contextmanager
def _service(config: RunConfig, engine: EngineSettings, run: RunDirectory, processes: int) -> Iterator[ServiceAddress]:
    if config.rollout.server is not None:
        yield standing_service(config.rollout.server)
        return
    with _own_service(config, engine, run, processes) as address:
        yield address


@contextlib.contextmanager
def _own_service(
    config: RunConfig, engine: EngineSettings, run: RunDirectory, processes: int
) -> Iterator[ServiceAddress]:
    where = placed.folder()
    settings = _own_settings(config, engine, processes, elsewhere=where is not None)
    if where is not None:
        yield placed.ask(where, settings, run.path.name)
        return
    name = record.name_for(f"{run.path.name}-{os.getpid()}")
    try:
        with running_service(settings, name=name, log_folder=run.path / "servers") as address:
            yield address
    except ServiceStartError as error:
        print(error.log_text, file=sys.stderr)
        raise InputError(f"rollout.mode=server: {error}", "The end of its log is shown above.") from error


def _own_settings(config: RunConfig, engine: EngineSettings, processes: int, *, elsewhere: bool) -> ServiceSettings:
    """The run's own servers, on this machine or where the launcher places them."""
    rollout, kind = config.rollout, engine_kind()
    places = () if kind == "cpu" or elsewhere else config.server_devices(processes)
    if places and kind == devices.kind() and max(places) >= devices.count():
        raise InputError(
            f"servers on devices {', '.join(map(str, places))}, but {devices.count()} are visible (0 to "
            f"{devices.count() - 1}), of which the training takes the first {processes}",
            "Give rollout.server_devices, lower rollout.replicas or --devices, or make more devices visible.",
        )
    shares = not elsewhere and _shares_device(config, processes)
    return ServiceSettings(
        replace(
            engine,
            external_launcher=False,
            max_num_seqs=rollout.max_num_seqs or engine.max_num_seqs * processes,
            engine_share=engine.engine_share if shares else _OWN_DEVICE_SHARE,
        ),
        kind,
        replicas=rollout.replicas,
        tensor_parallel=rollout.tensor_parallel_size,
        devices=places,
        transport=remote_transport(rollout, processes) if elsewhere else own_transport(config, processes),
        worker_extension=WORKER_EXTENSION,
        max_restarts=rollout.max_restarts,
        restart_window=60.0 * rollout.restart_window_minutes,
    )
