"""`ascent serve MODEL`: from what the user gives to a service that runs until it is stopped."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from ascent import devices
from ascent.devices import Kind
from ascent.errors import InputError
from ascent.models.folder import model_folder
from ascent.rollout.engine import EngineSettings
from ascent.rollout.in_vllm.plugin import WORKER_EXTENSION
from ascent.rollout.platform import engine_kind, installed_vllm
from ascent.rollout.service.address import ServiceAddress
from ascent.rollout.service.record import name_for
from ascent.rollout.service.running import ServiceStartError, running_service, wait_until_it_ends
from ascent.rollout.service.server_command import allows_pickled_handles
from ascent.rollout.service.server_log import excerpt
from ascent.rollout.service.settings import ServiceSettings, check, is_loopback
from ascent.rollout.weights.transports.base import Place
from ascent.rollout.weights.transports.choice import check_fits, choose

_CPU_KV_CACHE_MB = 512


def settings(args: argparse.Namespace, *, elsewhere: bool = False) -> ServiceSettings:
    """What the arguments ask for: eager on CPU and NPU, float32 on CPU, the model's own context. `elsewhere`: servers
    on other machines, whose devices this one can't see. Raises InputError for what isn't a usable model and for
    arguments that don't fit together."""
    folder, kind = model_folder(args.model), engine_kind()
    kv_cache_mb = args.kv_cache_mb or (_CPU_KV_CACHE_MB if kind == "cpu" else None)
    engine = EngineSettings(
        model=str(folder.absolute()),
        dtype=args.dtype or ("float32" if kind == "cpu" else "bfloat16"),
        max_model_len=args.max_model_len or _context(folder),
        max_num_seqs=args.max_num_seqs,
        enforce_eager=kind != "cuda" if args.eager is None else args.eager,
        engine_share=args.engine_share,
        kv_cache_bytes=None if kv_cache_mb is None else kv_cache_mb * 2**20,
        trust_remote_code=args.trust_remote_code,
        speculative=args.speculative,
        speculative_tokens=args.speculative_tokens,
    )
    wanted = ServiceSettings(
        engine,
        kind,
        replicas=args.replicas,
        tensor_parallel=args.tensor_parallel,
        devices=() if kind == "cpu" or elsewhere else _devices(args),
        visible_devices=0 if kind == "cpu" or elsewhere else devices.count(),
        transport=_transport(args, kind, same_host=is_loopback(args.host) and not elsewhere),
        worker_extension=WORKER_EXTENSION,
        adapters=args.adapters,
        adapter_rank=args.adapter_rank,
        host=args.host,
        port=args.port,
        gateway=args.gateway,
        max_restarts=args.max_restarts,
        extra_arguments=tuple(args.vllm),
    )
    check(wanted, api_key(args))
    return wanted


def _transport(args: argparse.Namespace, kind: Kind, *, same_host: bool) -> str:
    """How weights come, by its name. Nothing is known yet of the trainings that will use the service; one that is asked
    for by name is refused only where no training could use it."""
    place = Place(
        kind,
        vllm_version=installed_vllm(),
        same_host=same_host,
        shares_device=None,
        workers=args.replicas * args.tensor_parallel,
        allows_pickled_handles=allows_pickled_handles(os.environ),
    )
    if args.transport != "auto":
        check_fits(args.transport, replace(place, same_host=True))
        return str(args.transport)
    choice = choose(place)
    _say(f"weights come by {choice.name}: {choice.reason}")
    return choice.name


def serve(settings: ServiceSettings, args: argparse.Namespace, explain: Callable[[str], str]) -> int:
    """Serve until SIGINT or SIGTERM (0), or until every server failed (2). `explain` finds the cause in a log."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    name = args.name or name_for(Path(args.model).name)
    try:
        with running_service(
            settings, name=name, log_folder=args.logs, api_key=api_key(args), share_devices=args.force
        ) as address:
            _say(_welcome(address, settings))
            why, log = wait_until_it_ends(address)
    except ServiceStartError as error:
        why, log = str(error), error.whole_log
    except KeyboardInterrupt:
        why = log = ""
    if not why:
        _say(f"service {name} stopped")
        return 0
    if log:
        _say(f"its log says:\n{excerpt(log)}\n")
    _say(f"error: service {name}: {why}")
    if known := explain(log):
        _say(f"\n{known}")
    return 2


def api_key(args: argparse.Namespace) -> str | None:
    """The servers' token, as far as the user gives one."""
    return args.api_key or os.environ.get("ASCENT_API_KEY") or None


def _devices(args: argparse.Namespace) -> tuple[int, ...]:
    needed = args.replicas * args.tensor_parallel
    if args.devices is None:
        if needed > devices.count():
            raise InputError(
                f"--replicas {args.replicas} -tp {args.tensor_parallel}: needs {needed} devices, "
                f"{devices.count()} are visible"
            )
        return tuple(range(needed))
    try:
        return tuple(int(index) for index in args.devices.split(","))
    except ValueError:
        raise InputError(f"--devices {args.devices}: expected numbers with commas between, such as 0,1") from None


def _context(folder: Path) -> int:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    context = (config.get("text_config") or config).get("max_position_embeddings")
    if not isinstance(context, int):
        raise InputError(f"{folder}/config.json doesn't say how long the model's context is", "Give --max-model-len.")
    return context


def _welcome(address: ServiceAddress, settings: ServiceSettings) -> str:
    lines = [f"service {address.name} serves {address.model}", *(f"  {url}" for url in address.urls)]
    lines += [f"  gateway: {address.gateway}"] if address.gateway else []
    where = "on this machine" if settings.loopback else "here, or from another machine by these URLs and the API key"
    lines.append(f"train with it {where}; ascent serve --status shows it, ascent serve --stop {address.name} ends it")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
