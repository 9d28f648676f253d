"""Which accelerator trains, and one small interface over npu, cuda and cpu.

Together with `compat/` and `rollout/weights/` this is the only place that names a vendor's module. torch is imported
when a function needs it; the vendor's own package is loaded by torch (its `torch.backends` entry point). All of this is
about the device that trains: vLLM may run on another one (`rollout/platform.py`).
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from ascent.errors import InputError

if TYPE_CHECKING:
    import torch

Kind = Literal["npu", "cuda", "cpu"]

# What limits the devices that a process sees. Entries are places in the driver's own enumeration, starting at 0 within
# this container; they are not the ids that npu-smi prints, which skip numbers where a card holds several chips. The
# process then counts what is left from 0 again.
VISIBLE_VARIABLES = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
# torch_npu and older releases of torch raise a plain RuntimeError; torch's CPU allocator always does
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "OutOfMemoryError")
_ON_CPU_VARIABLE = "ACCELERATE_USE_CPU"  # accelerate's own, so that both agree; see process.set_up_process


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a device is doing now. Bytes; `peak_bytes` is of the time since `reset_peak`; `utilization` in percent and
    `power_watts` are None when the device doesn't report them. On CPU memory is that of this process."""

    used_bytes: int
    total_bytes: int
    peak_bytes: int
    utilization: float | None = None
    power_watts: float | None = None


def kind() -> Kind:
    """The device that trains: npu before cuda before cpu, as accelerate chooses; cpu where that was asked for."""
    import torch

    if os.environ.get(_ON_CPU_VARIABLE, "").lower() in {"1", "true", "yes", "on", "y", "t"}:
        return "cpu"
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        return "npu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def module(device_kind: Kind) -> ModuleType | None:
    """torch's module for an accelerator (`torch.npu`, `torch.cuda`); None for cpu."""
    import torch

    return None if device_kind == "cpu" else getattr(torch, device_kind)


def count() -> int:
    """How many accelerators are visible; 1 on a CPU machine."""
    accelerator = module(kind())
    return 1 if accelerator is None else int(accelerator.device_count())


def visible() -> str:
    """How the visible devices were limited, as "VARIABLE=value"; empty when they were not."""
    variable = VISIBLE_VARIABLES.get(kind(), "")
    return f"{variable}={os.environ[variable]}" if variable in os.environ else ""


def current() -> torch.device:
    """The current device with its index (accelerate leaves the index out on a single npu)."""
    import torch

    device_kind = kind()
    accelerator = module(device_kind)
    return torch.device("cpu") if accelerator is None else torch.device(device_kind, accelerator.current_device())


def name() -> str:
    """The device's product name; the processor's model name on CPU."""
    accelerator = module(kind())
    if accelerator is not None:
        return str(accelerator.get_device_name())
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as cpuinfo:
        models = [line.split(":", 1)[1].strip() for line in cpuinfo if line.lower().startswith("model name")]
    return models[0] if models else "cpu"


def supports_bf16() -> bool:
    """Whether bfloat16 runs natively. False on CPU, where it works but is emulated on most processors."""
    accelerator = module(kind())
    return bool(accelerator is not None and accelerator.is_bf16_supported())


def saturates() -> bool:
    """Whether the device gives the largest number where a product overflows, instead of infinity: Ascend chips before
    the 910B do, unless they are told otherwise."""
    if kind() != "npu":
        return False
    told: bool = module("npu").utils.is_support_inf_nan()  # type: ignore[union-attr]
    return not told


def use_in_thread(device: torch.device) -> None:
    """Make this the device of the current thread, which would use the first one otherwise. The CPU needs nothing."""
    accelerator = None if device.type == "cpu" else module(kind())
    if accelerator is not None:
        accelerator.set_device(device.index or 0)


def synchronize() -> None:
    """Wait for queued work, so that wall-clock times mean something. No-op on CPU."""
    accelerator = module(kind())
    if accelerator is not None:
        accelerator.synchronize()


def new_stream() -> Any:
    """A queue of work of its own on the current device; None on CPU, which has none."""
    accelerator = module(kind())
    return None if accelerator is None else accelerator.Stream()


def on_stream(stream: Any) -> AbstractContextManager[Any]:
    """Inside, this thread's work goes to that stream, if there is one."""
    accelerator = module(kind())
    return contextlib.nullcontext() if accelerator is None or stream is None else accelerator.stream(stream)


# ---- memory -------------------------------------------------------------------------------------------------------


def use() -> DeviceUse:
    """Memory, and utilization and power where the device reports them."""
    accelerator = module(kind())
    if accelerator is None:
        return _process_memory()
    free, total = accelerator.mem_get_info()
    return DeviceUse(
        used_bytes=total - free,
        total_bytes=total,
        peak_bytes=accelerator.max_memory_allocated(),
        utilization=_reported(accelerator, "utilization"),
        power_watts=_reported(accelerator, "power_draw", scale=1e-3),
    )


def restricted_to(device_kind: str, indices: Sequence[int], environment: Mapping[str, str]) -> dict[str, str]:
    """The variable that shows a new process only some of the devices that `environment` shows; {} on cpu.

    `indices` count the devices that are visible now. Raises InputError for one that isn't.
    """
    if device_kind not in VISIBLE_VARIABLES:
        return {}
    return {VISIBLE_VARIABLES[device_kind]: ",".join(physical(device_kind, indices, environment))}


def physical(device_kind: str, indices: Sequence[int], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names by which every process knows the devices that a process with `environment` counts as `indices`.

    They are the driver's own numbers, or what the variable of visible devices has instead (such as a UUID); () on cpu.
    Raises InputError for a device that isn't visible.
    """
    variable = VISIBLE_VARIABLES.get(device_kind)
    if variable is None:
        return ()
    visible = [name.strip() for name in environment.get(variable, "").split(",") if name.strip()]
    for index in indices:
        if index < 0 or (visible and index >= len(visible)):
            raise InputError(f"device {index}: {variable}={environment.get(variable)} shows {len(visible)} devices")
    return tuple(visible[index] if visible else str(index) for index in indices)


def reset_peak() -> None:
    """Count the peak of memory from now on. On CPU the kernel is asked to; where it refuses, peaks stay those since the
    process's start."""
    accelerator = module(kind())
    if accelerator is not None:
        accelerator.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as counts:
        counts.write("5")  # the peak of resident memory (proc_pid_clear_refs(5))


def peaks() -> tuple[int, int]:
    """Bytes since `reset_peak`: the most that tensors held, and that their allocator held of the device. On CPU the
    peak of this process's resident memory."""
    accelerator = module(kind())
    if accelerator is None:
        peak = _process_memory().peak_bytes
        return peak, peak
    return int(accelerator.max_memory_allocated()), int(accelerator.max_memory_reserved())


def limit_allocator(bytes_: int) -> None:
    """Let this process's allocator take at most so much of the current device: beyond it, memory has run out. Raises
    InputError on CPU, whose allocator has no such limit, and for more than there is."""
    accelerator = module(kind())
    if accelerator is None:
        raise InputError(
            f"memory.trainer_gb={bytes_ / 2**30:g}: a cap is kept by an accelerator's allocator; this is a CPU",
            "Leave memory.trainer_gb out here.",
        )
    total = accelerator.mem_get_info()[1]
    if bytes_ > total:
        raise InputError(f"memory.trainer_gb={bytes_ / 2**30:g}: the device has {total / 2**30:.2f} GiB")
    accelerator.set_per_process_memory_fraction(bytes_ / total)


def empty_cache() -> None:
    """Give memory that torch keeps for later back to the device, for others on it. No-op on CPU."""
    accelerator = module(kind())
    if accelerator is not None:
        accelerator.empty_cache()


def says_out_of_memory(message: str) -> bool:
    """Whether this is what an allocator says, of whatever device, when there is no room."""
    return any(said in message for said in _OUT_OF_MEMORY)


def _reported(accelerator: ModuleType, query: str, scale: float = 1.0) -> float | None:
    """A figure that the driver may not give: the query may be absent, need a package, or be refused."""
    if not hasattr(accelerator, query):
        return None
    try:
        return float(getattr(accelerator, query)()) * scale
    except (ImportError, RuntimeError, OSError):
        return None


def _process_memory() -> DeviceUse:
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * page
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        high = [line.split()[1] for line in status if line.startswith("VmHWM:")]  # ru_maxrss can't be reset
    peak = int(high[0]) * 1024 if high else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return DeviceUse(resident, os.sysconf("SC_PHYS_PAGES") * page, peak)


# ---- random numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Randomness:
    """What torch draws next, on the host and on the current device (None: there is no other)."""

    host: Any
    device: Any

    def restore(self) -> None:
        """It is drawn next again."""
        import torch

        torch.set_rng_state(self.host)
        if self.device is not None and (accelerator := module(kind())) is not None:
            accelerator.set_rng_state(self.device)


def randomness() -> Randomness:
    """What torch draws next."""
    import torch

    accelerator = module(kind())
    return Randomness(torch.get_rng_state(), None if accelerator is None else accelerator.get_rng_state())


@contextlib.contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Afterwards Python, numpy, torch and the current device draw what they would have drawn without the inside."""
    import numpy as np

    torch_state, numpy_state, python_state = randomness(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch_state.restore()
        np.random.set_state(numpy_state)
        random.setstate(python_state)
