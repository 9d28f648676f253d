"""Rules A5: environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from ascent.environment import settings
from ascent.environment.checks.purpose import Purpose
from ascent.environment.finding import Finding, Level
from ascent.environment.inventory import Environment
from ascent.environment.npu_smi import masked_by
from ascent.environment.rules import found
from ascent.environment.versions import at_least

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOOPBACK = ("localhost", "127.0.0.1")
_INTERFACE_VARIABLES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def _is_npu(environment: Environment) -> bool:
    return environment.accelerator == "npu"


def expandable_segments(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A501: expandable segments and sleep mode exclude each other."""
    value = environment.variables.get("PYTORCH_NPU_ALLOC_CONF", "")
    if "expandable_segments:true" in value.lower().replace(" ", "") and purpose.sleep_mode is not False:
        level: Level = "error" if purpose.sleep_mode else "warning"
        yield found(
            "A501",
            level,
            "PYTORCH_NPU_ALLOC_CONF switches expandable segments on"
            + (" and the run uses sleep mode" if purpose.sleep_mode else ": sleep mode won't work"),
            evidence=[f"PYTORCH_NPU_ALLOC_CONF={value}"],
        )


def nz_format(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A502: the NZ format must be off for weight updates."""
    ascend = environment.version("vllm-ascend")
    if not (ascend and at_least(ascend, "0.11.0rc1")) or purpose.weight_updates is False:
        return
    value = environment.variables.get("VLLM_ASCEND_ENABLE_NZ")
    if value == "0":
        yield found("A502", "ok", "VLLM_ASCEND_ENABLE_NZ=0: weights can be updated")
    elif environment.origin == "machine" or value is not None:
        stated = "isn't set (its default is 1)" if value is None else f"is {value}"
        needed = purpose.weight_updates or purpose.sleep_mode
        yield found("A502", "error" if needed else "warning", f"VLLM_ASCEND_ENABLE_NZ {stated}")


def visible_devices(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A503: the list names devices that exist."""
    mask = environment.variables.get("ASCEND_RT_VISIBLE_DEVICES")
    if mask is None:
        return
    count = len(environment.npu.devices) or _cards(environment)
    good, bad = masked_by(mask, count or 1 << 20)
    evidence = [f"ASCEND_RT_VISIBLE_DEVICES={mask}", f"{count} devices in the enumeration"]
    if not good and not bad:
        yield found(
            "A503",
            "error",
            "ASCEND_RT_VISIBLE_DEVICES is empty: the process sees no NPU",
            evidence=evidence[:1],
        )
    elif bad and (count or any(not entry.isdigit() for entry in bad)):
        where = f"there {'are' if count != 1 else 'is'} {count}" if count else "it takes numbers from 0 on"
        yield found(
            "A503",
            "error",
            f"ASCEND_RT_VISIBLE_DEVICES names {', '.join(bad)}, but {where}",
            evidence=evidence,
        )
    elif len(set(good)) != len(good):
        yield found("A503", "error", "ASCEND_RT_VISIBLE_DEVICES names a device twice", evidence=evidence[:1])
    elif count:
        yield found("A503", "ok", f"ASCEND_RT_VISIBLE_DEVICES={mask} names devices that exist")


def _cards(environment: Environment) -> int:
    """Cards by their device files, for where npu-smi doesn't answer."""
    nodes = environment.host.device_nodes
    return sum(node.removeprefix("davinci").isdigit() for node in nodes)


def shared_devices(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A504: trainer and server on disjoint devices."""
    both = sorted(set(purpose.trainer_devices) & set(purpose.server_devices))
    if both:
        yield found(
            "A504",
            "error",
            f"trainer and server share device {', '.join(map(str, both))}",
            evidence=[f"trainer {list(purpose.trainer_devices)}", f"server {list(purpose.server_devices)}"],
        )


def launch_blocking(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A505: synchronous launches and graphs."""
    if environment.variables.get("ASCEND_LAUNCH_BLOCKING") == "1" and purpose.graph_mode is not False:
        yield found("A505", "warning", "ASCEND_LAUNCH_BLOCKING=1 is set")


def timeouts(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A506: HCCL's patience below its default."""
    for name, default in (("HCCL_CONNECT_TIMEOUT", 120), ("HCCL_EXEC_TIMEOUT", 1800)):
        value = environment.variables.get(name, "")
        if value.isdigit() and 0 < int(value) < default:
            yield found("A506", "warning", f"{name}={value} is below the default of {default} s")


def proxies(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A507: proxies without an exception for this machine."""
    lowered = {name.lower(): value for name, value in environment.variables.items() if value}
    active = [name for name in _PROXIES if lowered.get(name)]
    excepted = lowered.get("no_proxy", "").lower().replace(" ", "").split(",")
    if active and "*" not in excepted and not any(host in excepted for host in _LOOPBACK):
        yield found(
            "A507",
            "warning",
            f"{', '.join(active)} set, and no_proxy doesn't name localhost",
            evidence=[f"no_proxy={lowered.get('no_proxy', '')}"],
        )


def task_queue(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A508: task queue level 2 and graphs."""
    if environment.variables.get("TASK_QUEUE_ENABLE") == "2" and purpose.graph_mode is not False:
        yield found("A508", "warning", "TASK_QUEUE_ENABLE=2 is set")


def autoload(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A509: torch_npu must be imported by hand."""
    if _is_npu(environment) and environment.variables.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield found("A509", "note", "TORCH_DEVICE_BACKEND_AUTOLOAD=0")


def plugins(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A510: the list of plug-ins that may load."""
    value = environment.variables.get("VLLM_PLUGINS")
    if value is None or not _is_npu(environment):
        return
    names = {name.strip() for name in value.split(",")}
    needed = ["ascend", "ascend_kv_connector", *["ascent"] * bool(purpose.server_mode)]
    missing = [name for name in needed if name not in names]
    if missing:
        yield found(
            "A510",
            "error",
            f"VLLM_PLUGINS leaves out {', '.join(missing)}",
            evidence=[f"VLLM_PLUGINS={value}"],
        )


def forking(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A511: worker processes by fork."""
    if _is_npu(environment) and environment.variables.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork":
        yield found("A511", "error", "VLLM_WORKER_MULTIPROC_METHOD=fork")


def interfaces(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A512: interfaces that are named exist."""
    there = environment.host.interfaces
    for name in _INTERFACE_VARIABLES:
        value = environment.variables.get(name, "")
        wanted = [
            entry.strip().removeprefix("=") for entry in value.split(",") if entry.strip() and not value.startswith("^")
        ]
        if there and wanted and not any(each.startswith(entry) for entry in wanted for each in there):
            yield found("A512", "error", f"{name} names {value}, this machine has {', '.join(there)}")


def overflow_mode(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A513: the overflow mode that A2 refuses."""
    if environment.variables.get("INF_NAN_MODE_ENABLE") == "0":
        yield found("A513", "warning", "INF_NAN_MODE_ENABLE=0")


def idle_settings(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A515: variables of tutorials that do nothing on this machine."""
    for name in environment.variables:
        entry = settings.load().get(name)
        if entry and entry.kind == "variable" and not entry.exists and _is_npu(environment):
            yield found("A515", "note", f"{name} is set: {entry.answer}", mend=[entry.use_instead])


CHECKS = (
    expandable_segments,
    nz_format,
    visible_devices,
    shared_devices,
    launch_blocking,
    timeouts,
    proxies,
    task_queue,
    autoload,
    plugins,
    forking,
    interfaces,
    overflow_mode,
    idle_settings,
)
