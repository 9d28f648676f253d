"""The smoke test: each layer once, in a process of its own with a time limit; the first failure is diagnosed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ascent.environment.faults import Reading, diagnose_text
from ascent.environment.finding import Finding
from ascent.environment.inventory import Environment
from ascent.environment.rules import found
from ascent.host.keeper import Keeper

Outcome = Literal["passed", "failed", "timeout", "skipped"]


@dataclass(frozen=True)
class Step:
    """One step: a program for a fresh interpreter, which prints what it measured and exits with 0, or 3 to skip."""

    name: str
    program: str
    seconds: float
    processes: int = 1


@dataclass(frozen=True)
class Result:
    """What a step did. ``output`` is the end of what its processes printed."""

    step: str
    outcome: Outcome
    seconds: float
    output: str
    reading: Reading | None = None


SAID = "result: "
_DEVICE = """
import importlib.util, os, sys
import torch
if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
    kind = "cpu"
elif importlib.util.find_spec("torch_npu"):
    import torch_npu
    kind = "npu"
else:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
space = getattr(torch, kind)
count = 1 if kind == "cpu" else space.device_count()
if count == 0:
    sys.exit("no visible device of kind " + kind)
"""
_IMPORT = _DEVICE + 'print("result: torch", torch.__version__, "on", count, kind)\n'
_SUM = (
    _DEVICE
    + """
for index in range(count):
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, index)
    total = torch.ones(1000, device=device).sum().item()
    assert total == 1000.0, f"the sum of 1000 ones on {device} is {total}"
print("result: sum of 1000 ones is right on", count, "device(s)")
"""
)
_MATMUL = (
    _DEVICE
    + """
torch.manual_seed(0)
left, right = torch.randn(256, 256), torch.randn(256, 256)
exact = left @ right
low = (left.to(kind).bfloat16() @ right.to(kind).bfloat16()).float().cpu()
error = ((low - exact).abs().max() / exact.abs().max()).item()
assert error < 0.03, f"bfloat16 matmul differs from float32 by {error:.3f} of the largest value"
print(f"result: bfloat16 matmul within {error:.4f} of float32")
"""
)
_ALL_REDUCE = (
    _DEVICE
    + """
from datetime import timedelta
import torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
here, local = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
if kind != "cpu":
    if count < here:
        print("result: one visible device: nothing to reduce over"); sys.exit(3)
    space.set_device(local)
backend = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}[kind]
dist.init_process_group(backend, timeout=timedelta(seconds=60))
value = torch.full((1024,), float(rank + 1), device=kind if kind == "cpu" else f"{kind}:{local}")
dist.all_reduce(value)
assert value[0].item() == world * (world + 1) / 2, f"all-reduce gave {value[0].item()}"
dist.destroy_process_group()
print("result: all-reduce over", world, "processes with", backend)
"""
)
_TRL = """
import importlib.util, sys
if importlib.util.find_spec("trl") is None:
    print("result: TRL isn't installed"); sys.exit(3)
from trl import GRPOConfig, GRPOTrainer
import trl
print("result: TRL", trl.__version__, "imports")
"""
_ENGINE = """
import importlib.util, json, os, sys
if importlib.util.find_spec("vllm") is None:
    print("result: vLLM isn't installed"); sys.exit(3)
from pathlib import Path
folder = Path(sys.argv[1])
if __name__ == "__main__":
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256,
                         bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    on_npu = importlib.util.find_spec("torch_npu") is not None
    on_cpu = not on_npu and not torch.cuda.is_available()
    if on_cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams
    llm = LLM(model=str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=128,
              max_num_seqs=2, dtype="float32" if on_cpu else "bfloat16", gpu_memory_utilization=0.1)
    output = llm.generate([{"prompt_token_ids": [1, 5, 9]}],
                          SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0, detokenize=False))
    tokens = list(output[0].outputs[0].token_ids)
    assert len(tokens) == 8, f"asked for 8 tokens, got {len(tokens)}"
    print("result: vLLM sampled 8 tokens")
"""
ALL_REDUCE = Step("all-reduce", _ALL_REDUCE, 180, processes=2)
STEPS: tuple[Step, ...] = (
    Step("import torch", _IMPORT, 120),
    Step("sum on each device", _SUM, 120),
    Step("bfloat16 matmul", _MATMUL, 120),
    ALL_REDUCE,
    Step("import TRL", _TRL, 180),
    Step("vLLM engine, 8 tokens", _ENGINE, 600),
)


def run(
    steps: Sequence[Step] = STEPS,
    report: Callable[[Result], None] = lambda result: None,
    python: str = sys.executable,
) -> list[Result]:
    """Run the steps in order and stop at the first that fails, with its diagnosis. ``report`` hears of each at once."""
    results = []
    with tempfile.TemporaryDirectory(prefix="ascent-smoke-") as folder:
        for step in steps:
            result = run_step(step, Path(folder), python)
            results.append(result)
            report(result)
            if result.outcome in ("failed", "timeout"):
                break
    return results


def run_step(
    step: Step, folder: Path, python: str = sys.executable, *, variables: Mapping[str, str] | None = None
) -> Result:
    """One step: its processes in groups of their own, all ended at the time limit, or when this process is gone.

    `variables` are added to their environment: where they meet processes on other machines, they have to say how.
    """
    added = variables or {}
    script = folder / f"{step.name.replace(' ', '-').replace(',', '')}.py"
    script.write_text(step.program, "utf-8")
    work = folder / f"{script.stem}-files"
    work.mkdir(exist_ok=True)
    begun = time.monotonic()
    port = str(29_000 + os.getpid() % 2000)
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    with Keeper() as keeper:
        for rank in range(step.processes):
            log = folder / f"{script.stem}-{rank}.log"
            meeting = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(step.processes),
                "LOCAL_WORLD_SIZE": str(step.processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            inherited = {name: value for name, value in os.environ.items() if name not in meeting}
            environment = {**inherited, **(meeting if step.processes > 1 else {}), "VLLM_LOGGING_LEVEL": "WARNING"}
            with log.open("wb") as sink:
                process = subprocess.Popen(
                    [python, str(script), str(work)],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env={**environment, **added},
                    start_new_session=True,
                    cwd=work,
                )
            keeper.tell("+", process.pid)
            running.append((process, log))
        statuses = [_wait(process, begun + step.seconds) for process, _ in running]
    seconds = time.monotonic() - begun
    output = "\n".join(_end_of(log) for _, log in running)
    if None in statuses:
        output += f"\nended: no answer within {step.seconds:.0f} s"
        return Result(step.name, "timeout", seconds, output, diagnose_text(output))
    if any(status not in (0, 3) for status in statuses):
        return Result(step.name, "failed", seconds, output, diagnose_text(output))
    return Result(step.name, "skipped" if 3 in statuses else "passed", seconds, output)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Exit status; None when the deadline passed. The process's whole group is ended in any case."""
    status: int | None
    try:
        status = process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        status = None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return status


def _end_of(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 200_000))
        return stream.read().decode("utf-8", errors="replace").strip()


def as_finding(result: Result) -> Finding:
    """A step's result as a finding under rule A801."""
    lines = [line.strip() for line in result.output.splitlines() if line.strip()]
    stated = [line.removeprefix(SAID) for line in lines if line.startswith(SAID)]
    last = stated[-1] if stated else lines[-1] if lines else ""
    if result.outcome == "passed":
        return found("A801", "ok", f"{result.step} ({result.seconds:.1f} s): {last}")
    if result.outcome == "skipped":
        return found("A801", "note", f"{result.step} was skipped: {last}", mend=())
    primary = result.reading.primary if result.reading else None
    what = f"{result.step} failed after {result.seconds:.1f} s"
    if result.outcome == "timeout":
        what = f"{result.step} gave no answer within its time limit"
    if primary is None:
        return found("A801", "error", what, evidence=result.output.splitlines()[-3:])
    return found(
        "A801",
        "error",
        f"{what}: {primary.fault}",
        why=primary.cause,
        mend=primary.mend,
        evidence=[each.text for each in primary.evidence[:2]] + [last],
    )


def worth_running(environment: Environment) -> bool:
    """Whether there is a torch to test."""
    return bool(environment.version("torch"))
