"""Rules A2: NPUs, their driver, health, load and device files."""

from __future__ import annotations

from collections.abc import Iterator

from ascent.environment import chips
from ascent.environment.checks.purpose import Purpose
from ascent.environment.finding import Finding, Level
from ascent.environment.inventory import Device, Environment
from ascent.environment.npu_smi import masked_by
from ascent.environment.rules import found
from ascent.environment.versions import at_least, older

_BUSY_SHARE = 0.15
_BUSY_AICORE = 5
_GPU_MEND = ["nvidia-smi names the processes: stop leftovers, or choose others with CUDA_VISIBLE_DEVICES"]
_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")


def answering(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A201, A202: there are NPUs and npu-smi answers."""
    npu = environment.npu
    if npu.state == "failed":
        yield found(
            "A202",
            "error",
            f"npu-smi fails: {npu.error or 'no output'}",
            why=_failure_reason(npu.error),
            mend=_failure_mend(npu.error),
            evidence=[npu.error],
        )
    elif npu.devices:
        names = ", ".join(environment.chips) or "unnamed"
        driver = f", driver {npu.driver}" if npu.driver else ", driver version not stated"
        yield found("A201", "ok", f"{len(npu.devices)} NPU{'s' * (len(npu.devices) > 1)} ({names}){driver}")
    elif environment.origin == "machine" and environment.accelerator == "npu":
        nodes = [node for node in environment.host.device_nodes if node.startswith("davinci") and node[-1].isdigit()]
        if npu.state == "missing" and nodes:
            what = f"npu-smi isn't there, although {len(nodes)} device file(s) are: it isn't mounted"
            yield found("A202", "error", what, evidence=nodes[:8])
        else:
            yield found(
                "A201",
                "error",
                "no NPU is visible here",
                evidence=[f"npu-smi: {npu.state}", "no /dev/davinciN"],
            )


def _failure_reason(error: str) -> str:
    if "-8020" in error:
        return "Another container holds the device, and the driver isn't set to share it."
    if "-8005" in error:
        return "The driver can't be reached: another container holds the card, or mounts or rights are missing."
    if "shared librar" in error or "libc_sec" in error:
        return "The driver's user-space libraries aren't mounted, or not on LD_LIBRARY_PATH."
    return ""


def _failure_mend(error: str) -> list[str] | None:
    if "-8020" in error or "-8005" in error:
        return [
            "stop the other container that uses the card, or start both with --privileged (device sharing)",
            "check that all device files and the driver's folders are passed into this container",
        ]
    if "shared librar" in error:
        return ["mount /usr/local/Ascend/driver/lib64 and add its driver and common folders to LD_LIBRARY_PATH"]
    return None


def health(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A203: what npu-smi says of each device's health."""
    stated = [device for device in environment.npu.devices if device.health]
    ill = [device for device in stated if device.health.split(" ")[0] != "OK"]
    grave = [device for device in ill if device.health.split(" ")[0] != "Warning"]
    for device in ill:
        level: Level = "error" if device in grave else "warning"
        yield found(
            "A203",
            level,
            f"{_place(device)} is in state {device.health}",
            evidence=[_described(device)],
        )
    if stated and not ill:
        yield found("A203", "ok", "all devices are healthy")


def busy(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A204: devices that others use."""
    used = []
    for device in environment.npu.devices:
        processes = [each for each in environment.npu.processes if (each.npu, each.chip) == (device.npu, device.chip)]
        used_mb, total_mb = device.memory_used_mb, device.memory_total_mb
        full = bool(used_mb and total_mb and used_mb > _BUSY_SHARE * total_mb)
        working = (device.aicore_percent or 0) >= _BUSY_AICORE
        if full or working or processes:
            names = ", ".join(
                f"{each.name or 'name hidden'} (pid {each.pid}, {each.memory_mb} MB)" for each in processes[:3]
            )
            used.append(f"{_described(device)}{': ' + names if names else ''}")
    # Processes on NPUs whose device rows weren't pasted.
    known = {(device.npu, device.chip) for device in environment.npu.devices}
    stray = sorted({each.npu for each in environment.npu.processes if (each.npu, each.chip) not in known})
    if stray:
        used.append("processes on NPU " + ", ".join(map(str, stray)))
    if used:
        yield found(
            "A204",
            "warning",
            f"{len(used)} device{'s are' if len(used) > 1 else ' is'} in use",
            evidence=used[:8],
        )
    elif any(device.memory_total_mb for device in environment.npu.devices):
        yield found("A204", "ok", "all devices are idle")


def generation(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A205, A206: the chip's family, and whether it has bfloat16."""
    for name in environment.chips:
        chip = chips.identify(name)
        if chip.fitness == "supported":
            yield found("A205", "ok", f"{name}: {chip.family}, supported")
        elif chip.fitness == "unsupported":
            yield found(
                "A205",
                "error",
                f"{name}: {chip.family}, which vLLM-Ascend doesn't support",
                evidence=[chip.remark] if chip.remark else [],
            )
        elif chip.fitness == "inference only":
            yield found("A205", "error", f"{name}: {chip.family} isn't a target for GRPO ({chip.remark})")
        else:
            yield found(
                "A205",
                "warning",
                f"{name}: a chip that Ascent doesn't know",
                mend=["compare with vLLM-Ascend's list of supported hardware"],
            )
        if (chip.bfloat16 is False and chip.fitness != "unsupported") or (chip.bfloat16 is False and "910" in name):
            yield found("A206", "error", f"{name} has no bfloat16")


def numbering(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A207: gaps in npu-smi's numbers."""
    ids = sorted({device.npu for device in environment.npu.devices if device.name})
    if ids and ids != list(range(len(ids))) and ids[0] < 1024:
        count = len(environment.npu.devices)
        hole = ids != list(range(ids[0], ids[0] + len(ids)))
        yield found(
            "A207",
            "warning" if hole else "note",
            f"npu-smi numbers the cards {', '.join(map(str, ids))}: not 0 to {len(ids) - 1}",
            mend=[f"ASCEND_RT_VISIBLE_DEVICES takes 0 to {count - 1} here"],
        )


def free_memory(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A208: enough memory for the figure that the caller passed in."""
    if purpose.need_free_bytes is None:
        return
    need = purpose.need_free_bytes
    short = []
    free = [(_place(device), _free_bytes(device)) for device in visible(environment)] + _gpu_free(environment)
    for place, bytes_free in free:
        if bytes_free is not None and bytes_free < need:
            short.append(f"{place}: {bytes_free / 2**30:.1f} GiB free")
    if short:
        yield found(
            "A208",
            "error",
            f"{len(short)} device(s) have less than {need / 2**30:.1f} GiB free",
            evidence=short[:8],
        )
    elif any(bytes_free is not None for _, bytes_free in free):
        yield found("A208", "ok", f"every visible device has {need / 2**30:.1f} GiB free")


def _gpu_free(environment: Environment) -> list[tuple[str, int | None]]:
    free: list[tuple[str, int | None]] = []
    for index, gpu in enumerate(environment.gpus):
        sizes = _gpu_sizes(gpu)
        free.append((f"GPU {index}", (sizes[0] - sizes[1]) * 2**20 if len(sizes) == 2 else None))
    return free


def _gpu_sizes(gpu: str) -> list[int]:
    """Total and used MiB of a line of nvidia-smi."""
    parts = [part.split() for part in gpu.split(",")]
    return [int(part[0]) for part in parts if len(part) == 2 and part[1] == "MiB" and part[0].isdigit()]


def device_files(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A209: the files in /dev that the runtime opens."""
    host = environment.host
    if environment.origin != "machine" or not host.device_nodes:
        return
    missing = [f"/dev/{node}" for node in _NODES if node not in host.device_nodes]
    if all(node in _NODES for node in host.device_nodes):
        missing.append("/dev/davinciN (no card at all)")
    if missing:
        yield found(
            "A209",
            "error",
            f"missing: {', '.join(missing)}",
            evidence=[f"/dev/{node}" for node in host.device_nodes[:8]],
        )
    if host.unreadable_nodes:
        names = ", ".join(f"/dev/{node}" for node in host.unreadable_nodes[:8])
        mend = None
        if host.node_group and host.node_group not in host.groups:
            mend = [f"sudo usermod -aG {host.node_group} $USER, then log in again (in a container: --group-add)"]
        yield found("A209", "error", f"this user may not open {names}", mend=mend)
    if not missing and not host.unreadable_nodes:
        yield found("A209", "ok", "device files are there and may be opened")


def mounts(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A210: the driver's files in a container."""
    host = environment.host
    if environment.origin != "machine" or not host.device_nodes:
        return
    if host.missing_mounts:
        yield found("A210", "warning", f"missing or empty here: {', '.join(host.missing_mounts)}")
    else:
        yield found("A210", "ok", "the driver's files are there")


def graphics(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A201, A204 for CUDA machines: what nvidia-smi lists."""
    if not environment.gpus:
        return
    names = ", ".join(dict.fromkeys(gpu.partition(",")[0] for gpu in environment.gpus))
    count = len(environment.gpus)
    yield found("A201", "ok", f"{count} GPU{'s' * (count > 1)} ({names})", evidence=list(environment.gpus[:8]))
    busy = [f"GPU {index}: {gpu}" for index, gpu in enumerate(environment.gpus) if _gpu_share(gpu) > _BUSY_SHARE]
    if busy:
        yield found("A204", "warning", f"{len(busy)} GPU(s) in use", mend=_GPU_MEND, evidence=busy[:8])


def _gpu_share(gpu: str) -> float:
    sizes = _gpu_sizes(gpu)
    return sizes[1] / sizes[0] if len(sizes) == 2 and sizes[0] else 0.0


def driver(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A211: drivers whose stream limit is low for graph mode."""
    version = environment.npu.driver
    graphs = purpose.graph_mode is not False and at_least(environment.version("vllm-ascend"), "0.18.0rc1")
    if graphs and version and older(version, "25.5.1"):
        yield found("A211", "note", f"driver {version} is older than 25.5.1")


def build_target(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A213: vLLM-Ascend compiled for this card."""
    built = environment.build_target
    for name in environment.chips:
        wanted = chips.identify(name).build_target
        if built and wanted and built != wanted:
            yield found(
                "A213",
                "error",
                f"vllm-ascend was built for {built}, the card {name} is {wanted}",
                evidence=[f"vllm_ascend/_build_info.py: {built}"],
            )
        elif built and wanted:
            yield found("A213", "ok", f"vllm-ascend was built for {built}, as the card is")


def visible(environment: Environment) -> list[Device]:
    """The devices that ASCEND_RT_VISIBLE_DEVICES leaves, all of them when it isn't set."""
    mask = environment.variables.get("ASCEND_RT_VISIBLE_DEVICES")
    devices = list(environment.npu.devices)
    if mask is None:
        return devices
    return [devices[index] for index in masked_by(mask, len(devices))[0]]


def _free_bytes(device: Device) -> int | None:
    if device.memory_total_mb is None or device.memory_used_mb is None:
        return None
    return (device.memory_total_mb - device.memory_used_mb) * 2**20


def _place(device: Device) -> str:
    die = f" chip {device.chip}" if device.chip or device.physical is not None else ""
    return f"NPU {device.npu}{die}"


def _described(device: Device) -> str:
    memory = ""
    if device.memory_total_mb:
        memory = f", {device.memory_used_mb} of {device.memory_total_mb} MB {device.memory_kind} used"
    load = f", AICore {device.aicore_percent}%" if device.aicore_percent is not None else ""
    return f"{_place(device)} {device.name}{memory}{load}"


CHECKS = (
    answering,
    graphics,
    mounts,
    health,
    generation,
    build_target,
    device_files,
    numbering,
    busy,
    free_memory,
    driver,
)
