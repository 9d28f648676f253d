"""Tensors on the software NPU: the CPU's numbers to the last bit, memory of its own, no mixing with host tensors."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.softnpu_env import run_softnpu

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
Environment = Callable[..., dict[str, str]]

# Programs print a dict as text; each runs its cases on both devices and compares tensors with torch.equal.
COMMON = """
import io, torch, torch.nn as nn, torch.nn.functional as F

def host(values):
    return [value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in values]

def same(case):
    pairs = list(zip(host(case("cpu")), host(case("npu")), strict=True))
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs) and len(pairs) > 0

def error(case):
    try:
        return f"no error: {case()}"
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"

report = {}
"""


def report_of(program: str, environment: dict[str, str]) -> dict[str, Any]:
    out = run_softnpu(COMMON + program + "\nprint(report)", environment=environment)
    answer = ast.literal_eval(out.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


NUMBERS = """
def training(kind):
    def case(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 8))
        model.to(device)
        chosen = {"foreach": kind == "foreach", "fused": kind == "fused"}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **chosen)
        losses = []
        for _ in range(20):
            x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, *model.parameters()
    return case

def attention(masked):
    def case(device):
        torch.manual_seed(1)
        q, k, v = (torch.randn(2, 4, 33, 16).to(device).requires_grad_() for _ in range(3))
        mask = (torch.rand(2, 1, 33, 33) > 0.3).to(device) if masked else None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not masked)
        out.square().sum().backward()
        return out, q.grad, k.grad, v.grad
    return case

def convolutions(device):
    torch.manual_seed(1)
    found = []
    for layer, shape in (
        (nn.Conv2d(3, 8, 3, padding=1), (2, 3, 9, 9)), (nn.ConvTranspose1d(3, 6, 3, groups=3), (2, 3, 9)),
        (nn.Conv1d(3, 4, 2, bias=False), (2, 3, 9)),
    ):
        layer, x = layer.to(device), torch.randn(shape).to(device).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        found += [y, x.grad, *(p.grad for p in layer.parameters())]
    return found

def language_model(device):
    torch.manual_seed(2)
    embedding, head = nn.Embedding(50, 16).to(device), nn.Linear(16, 50).to(device)
    tokens = torch.randint(50, (3, 7), device=device)
    logits = head(embedding(tokens))
    loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    logps = logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1))
    drawn = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1)
    return loss, logps, drawn, embedding.weight.grad, head.weight.grad, *logits.topk(3), logits.sort(-1).indices

def types(device):
    torch.manual_seed(3)
    x = torch.randn(5, 6, device=device)
    c = torch.view_as_complex(torch.randn(4, 2, device=device))
    halves = [x.to(kind) @ x.to(kind).T for kind in (torch.bfloat16, torch.float16, torch.float64)]
    return *halves, (c.conj() * c).real, c.conj().resolve_conj(), x.int() % 3, x > 0, x.half() * 2.5, 2 - x.bfloat16()

report["loop"] = same(training("loop"))
report["foreach"] = same(training("foreach"))
report["fused"] = same(training("fused"))
report["causal attention"] = same(attention(False))
report["masked attention"] = same(attention(True))
report["convolutions"] = same(convolutions)
report["language model"] = same(language_model)
report["types"] = same(types)
report["comparison can fail"] = not same(lambda device: [torch.ones(1, device=device) + (device == "npu") * 1e-7])
"""

VIEWS = """
def views(device):
    t = torch.arange(24.0, device=device).view(2, 3, 4)
    t[0].add_(100)                      # a view writes through
    t.transpose(0, 2)[1, 1, 0] = -5
    t[t > 120] = 0
    parts = t.split(2, dim=2)
    parts[1].mul_(3)
    return t, t[:, torch.tensor([0, 2])], t.permute(2, 0, 1).contiguous(), t.unfold(2, 2, 1), t.view(torch.int32)

def storage(device):
    t = torch.zeros(3, device=device)
    t.data = torch.arange(5.0, device=device)
    r = torch.empty(0, device=device).resize_(4).fill_(3)
    out = torch.empty(0, device=device)
    torch.add(t, 1, out=out)
    s = torch.empty(0, device=device).set_(t.untyped_storage(), 1, (2,), (2,))
    s[0] = 9                            # shares t's memory
    grown = torch.ones(2, device=device)
    grown.untyped_storage().resize_(40)
    return t, r, out, s, grown, t.untyped_storage().nbytes(), grown.untyped_storage().nbytes()

def saved(device):
    kept = io.BytesIO()
    torch.save({"t": torch.arange(3.0, device=device), "m": nn.Linear(2, 2).state_dict()}, kept)
    kept.seek(0)
    return torch.load(kept)["t"], str(torch.load((kept.seek(0), kept)[1], map_location="cpu")["t"].device)

def autograd(device):
    torch.manual_seed(0)
    x = torch.randn(4, 4, device=device, requires_grad=True)
    gradient, = torch.autograd.grad((x @ x).sin().sum(), x, create_graph=True)
    second, = torch.autograd.grad(gradient.square().sum(), x)
    y = torch.utils.checkpoint.checkpoint(lambda z: (z * 2).relu(), x, use_reentrant=False).sum()
    y.backward()
    v = x.detach()
    before = v._version
    v.add_(1)
    return gradient, second, x.grad, v._version - before

def inference(device):
    kept = torch.arange(4.0, device=device)
    with torch.inference_mode():
        shown, made = kept[None].expand(3, 4), torch.ones(2, device=device)[None]
        shown[0, 1] = 9
    return kept, shown, shown.is_inference(), made.is_inference(), (kept * 2).is_inference()

cases = {"views": views, "storage": storage, "saved": saved, "autograd": autograd, "inference": inference}
for name, case in cases.items():
    report[name] = same(case)
kept = io.BytesIO()
torch.save(torch.ones(2, device="npu"), kept)
kept.seek(0)
report["loaded on"] = str(torch.load(kept).device)
report["printed"] = repr(torch.arange(2, device="npu"))
report["methods"] = (torch.ones(2).npu().is_npu, next(nn.Linear(2, 2).npu().parameters()).device.type)
x = torch.ones(2, requires_grad=True)
report["saved for backward overwritten"] = error(
    lambda: (lambda y: (y.square(), y.add_(1))[0].sum().backward())(x.npu() * 2))[:12]
"""


def test_numbers_are_the_cpus_to_the_last_bit(softnpu: Environment) -> None:
    found = report_of(NUMBERS, softnpu())
    assert [name for name, good in found.items() if good is not True] == []


def test_views_storage_and_autograd(softnpu: Environment) -> None:
    found = report_of(VIEWS, softnpu())
    assert found == {
        "views": True,
        "storage": True,
        "saved": True,
        "autograd": True,
        "inference": True,
        "loaded on": "npu:0",
        "printed": "tensor([0, 1], device='npu:0')",
        "methods": (True, "npu"),
        "saved for backward overwritten": "RuntimeError",
    }


MEMORY = """
MiB = 2**20
a = torch.zeros(4 * MiB, dtype=torch.uint8, device="npu")
report["allocated"] = torch.npu.memory_allocated() // MiB
report["over"] = error(lambda: torch.zeros(13 * MiB, dtype=torch.uint8, device="npu"))
report["over, from a kernel"] = error(lambda: a.repeat(4))[:16]
report["type"] = isinstance(torch.OutOfMemoryError("x"), RuntimeError)
b = torch.zeros(12 * MiB, dtype=torch.uint8, device="npu")
report["full"] = torch.npu.mem_get_info()
del b
report["peak"] = torch.npu.max_memory_allocated() // MiB
report["reserved"] = (torch.npu.memory_reserved() // MiB, torch.npu.mem_get_info()[0])
torch.npu.empty_cache()
torch.npu.reset_peak_memory_stats()
report["after"] = (torch.npu.memory_reserved() // MiB, torch.npu.max_memory_allocated() // MiB)
report["failures"] = torch.npu.memory_stats()["num_ooms"]
view = a[: MiB].view(4, -1).t()
report["views are free"] = torch.npu.memory_allocated() // MiB
del a
report["held by a view"] = torch.npu.memory_allocated() // MiB
del view
report["given back"] = torch.npu.memory_allocated()
torch.npu.set_per_process_memory_fraction(0.5)
report["half"] = error(lambda: torch.zeros(9 * MiB, dtype=torch.uint8, device="npu"))[:16]
report["accelerator"] = torch.accelerator.memory_allocated()
x = torch.ones(2, device="npu")
report["uses"] = [torch.npu.memory_allocated()]
import torch_npu
count = torch_npu._C._storage_Use_Count(x.untyped_storage()._cdata)
y = x[1:]
report["use count grows by"] = torch_npu._C._storage_Use_Count(x.untyped_storage()._cdata) - count
"""


def test_memory_is_limited_and_counted(softnpu: Environment) -> None:
    found = report_of(MEMORY, softnpu(memory=16 * 2**20))
    over = str(found.pop("over"))
    assert over.startswith("OutOfMemoryError: NPU out of memory. Tried to allocate 13.00 MiB (NPU 0; 16.00 MiB total")
    assert found == {
        "allocated": 4,
        "over, from a kernel": "OutOfMemoryError",
        "type": True,
        "full": (0, 16 * 2**20),
        "peak": 16,
        "reserved": (16, 0),
        "after": (4, 4),
        "failures": 2,
        "views are free": 4,
        "held by a view": 4,
        "given back": 0,
        "half": "OutOfMemoryError",
        "accelerator": 0,
        "uses": [8],
        "use count grows by": 1,
    }


MIXING = """
n, h, q = torch.ones(3, device="npu"), torch.ones(3), torch.ones(1, 1, 2, 4, device="npu")
refused = {
    "sum": lambda: n + h,
    "mask": lambda: torch.where(h > 0, n, n),
    "masked_fill": lambda: n.masked_fill(h > 0, 0.0),
    "gather index": lambda: n.gather(0, torch.tensor([1])),
    "labels": lambda: F.cross_entropy(torch.ones(2, 3, device="npu"), torch.tensor([0, 1])),
    "model": lambda: nn.Linear(3, 3)(n),
    "input": lambda: nn.Linear(3, 3).to("npu")(h),
    "attention mask": lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(2, 2) > 0),
    "embedding": lambda: F.embedding(torch.tensor([1]), torch.ones(3, 2, device="npu")),
    "concatenation": lambda: torch.cat([n, h]),
    "stack": lambda: torch.stack([h, n]),
    "index of a host tensor": lambda: h[torch.tensor([0], device="npu")],
    "index of the wrong device": lambda: n[torch.tensor([0], device="npu:1")],
    "written number": lambda: torch.tensor(1.0).add_(torch.tensor(1.0, device="npu")),
    "out": lambda: torch.add(n, 1, out=torch.empty(3)),
    "two devices": lambda: n + torch.ones(3, device="npu:1"),
    "host generator": lambda: torch.rand(3, device="npu", generator=torch.Generator()),
    "device generator": lambda: torch.rand(3, generator=torch.Generator("npu")),
    "lists": lambda: torch._foreach_add_([n], [h]),
    "numpy": lambda: n.numpy(),
    "cuda": lambda: n.cuda(),
    "cuda device": lambda: torch.cuda.current_device(),
    "no such device": lambda: torch.ones(2, device="npu:2"),
    "no such device, moved": lambda: h.to("npu:7"),
    "no such device, set": lambda: torch.npu.set_device(2),
    "sparse": lambda: torch.ones(2, 2, device="npu").to_sparse(),
}
report["refused"] = {name: error(case) for name, case in refused.items()}
report["allowed"] = [
    (n + torch.tensor(2.0)).tolist(), (n * 2).tolist(), n[torch.tensor([0, 2])].tolist(), n.to("npu:1").device.index,
    torch.where(n > 0, torch.tensor(5.0), n).tolist(), h.copy_(n * 4).tolist(),
    (torch.ones(2, device="npu:1") + 1).device.index,
]
torch.npu.set_device(1)
report["current"] = (torch.npu.current_device(), str(torch.ones(1, device="npu").device), torch.npu.device_count())
with torch.npu.device(0):
    report["within"] = str(torch.empty(1, device="npu").device)
report["after"] = torch.npu.current_device()
def over(first, second):
    torch.manual_seed(0)
    a, b = nn.Linear(4, 4).to(first), nn.Linear(4, 4).to(second)
    b(a(torch.ones(2, 4, device=first)).tanh().to(second)).square().sum().backward()
    return host([a.weight.grad, b.weight.grad]), (str(a.weight.grad.device), str(b.weight.grad.device))
across, devices = over("npu:0", "npu:1")
report["model over two devices"] = (all(map(torch.equal, across, over("cpu", "cpu")[0])), devices)
report["apart"] = (torch.npu.memory_allocated(0) > 0, torch.ones(999, device="npu:0").device.index)
"""


def test_mixing_devices_is_refused_and_several_devices_are_apart(softnpu: Environment) -> None:
    found = report_of(MIXING, softnpu(devices=2))
    refused = found["refused"]
    assert isinstance(refused, dict)
    assert {name: text for name, text in refused.items() if text.startswith("no error")} == {}
    one_device = [name for name, text in refused.items() if "Expected all tensors to be on the same device" in text]
    assert {"sum", "mask", "gather index", "labels", "model", "input", "attention mask", "two devices"} <= set(
        one_device
    )
    assert "npu:0 and cpu! (argument other of aten::add.Tensor)" in refused["sum"]
    assert "Expected a 'npu' device type for generator but found 'cpu'" in refused["host generator"]
    assert "Torch not compiled with CUDA enabled" in refused["cuda"]
    assert "Invalid device ID: npu:2 was asked for, and 2 NPU(s) are visible" in refused["no such device"]
    assert found["allowed"] == [[3, 3, 3], [2, 2, 2], [1, 1], 1, [5, 5, 5], [4, 4, 4], 1]
    assert found["current"] == (1, "npu:1", 2)
    assert found["model over two devices"] == (True, ("npu:0", "npu:1"))
    assert (found["within"], found["after"], found["apart"]) == ("npu:0", 1, (True, 0))


def test_mixing_is_let_pass_when_asked(softnpu: Environment) -> None:
    program = """
report["sum"] = (torch.ones(2, device="npu") + torch.ones(2)).tolist()
report["devices"] = torch.npu.device_count()
"""
    assert report_of(program, softnpu(strict=False)) == {"sum": [2, 2], "devices": 1}


def test_visible_devices_and_settings(softnpu: Environment) -> None:
    """The list ends at the first entry that names no device; one out of order leaves none; a wrong setting is said."""
    program = """
import os
lists = {}
for text in ("", "0", "2", "0,2,3", "1,9,2", "2,1", "0,x", "-1", "3,"):
    os.environ["ASCEND_RT_VISIBLE_DEVICES"] = text
    lists[text] = torch.npu.device_count()
report["lists"] = lists
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1,3"
report["two"] = (torch.npu.device_count(), torch.ones(1, device="npu:1").device.index)
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0"
report["fixed by use"] = torch.npu.device_count()
"""
    found = report_of(program, softnpu(devices=4))
    assert found["lists"] == {"": 0, "0": 1, "2": 1, "0,2,3": 3, "1,9,2": 1, "2,1": 0, "0,x": 1, "-1": 0, "3,": 1}
    assert (found["two"], found["fixed by use"]) == ((2, 1), 2)
    bad = {**softnpu(), "SOFTNPU_MEMORY": "16G"}
    done = subprocess.run([sys.executable, "-c", "import torch"], env=bad, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "SOFTNPU_MEMORY=16G: expected a whole number" in done.stderr


def test_import_torch_is_enough_and_the_ordinary_environment_has_nothing(softnpu: Environment) -> None:
    program = "import importlib.metadata, sys, torch; print(torch.npu.is_available(), 'torch_npu' in sys.modules, {})"
    version = "importlib.metadata.version('torch_npu')"
    assert run_softnpu(program.format(version), environment=softnpu()) == "True True 2.10.0.post4+software\n"
    first = "import torch_npu, torch, os; print(torch.ones(1).npu().device, os.getenv('TORCH_DEVICE_BACKEND_AUTOLOAD'))"
    assert run_softnpu(first, environment=softnpu()) == "npu:0 None\n"
    off = {**softnpu(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert run_softnpu("import torch; print(hasattr(torch, 'npu'))", environment=off) == "False\n"
    ordinary = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = "import importlib.util, torch; print(importlib.util.find_spec('torch_npu'), hasattr(torch, 'npu'))"
    assert run_softnpu(program, environment=ordinary) == "None False\n"
