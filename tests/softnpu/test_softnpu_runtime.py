"""torch.npu on the software NPU: generators, streams, autocast, moving modules, processes, fused attention."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
from tests.softnpu_env import run_softnpu

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
Environment = Callable[..., dict[str, str]]


def report_of(program: str, environment: dict[str, str]) -> dict[str, Any]:
    out = run_softnpu(f"import torch\nreport = {{}}\n{program}\nprint(report)", environment=environment)
    answer = ast.literal_eval(out.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


OWN_GENERATORS = """
def moves_host(draw):
    before = torch.get_rng_state()
    draw()
    return not torch.equal(before, torch.get_rng_state())

def repeats(draw):
    state = torch.npu.get_rng_state()
    first, second = draw().cpu(), draw().cpu()
    torch.npu.set_rng_state(state)
    return torch.equal(first, draw().cpu()) and not torch.equal(first, second)

p = torch.full((64,), 0.5, device="npu")
draws = {
    "rand": lambda: torch.rand(64, device="npu"),
    "normal_": lambda: torch.empty(64, device="npu").normal_(),
    "randperm": lambda: torch.randperm(64, device="npu"),
    "randint": lambda: torch.randint(1000, (64,), device="npu"),
    "bernoulli": lambda: torch.bernoulli(p),
    "multinomial": lambda: torch.multinomial(p, 20),
    "dropout": lambda: torch.nn.functional.dropout(p),
    "native_dropout": lambda: torch.native_dropout(p, 0.5, True)[0],   # takes no generator
    "rrelu": lambda: torch.nn.functional.rrelu(-p, training=True),
}
report["moves the host"] = [name for name, draw in draws.items() if moves_host(draw)]
report["does not repeat"] = [name for name, draw in draws.items() if not repeats(draw)]
state = torch.npu.get_rng_state()
torch.rand(5)
report["moved by the host"] = not torch.equal(state, torch.npu.get_rng_state())
torch.manual_seed(7)
a = torch.rand(4, device="npu")
torch.npu.manual_seed_all(7)
b, c = torch.rand(4, device="npu"), torch.rand(4, device="npu:1")
report["seeded"] = (torch.equal(a, b), a.tolist() == c.tolist(), torch.npu.initial_seed())
torch.rand(3, device="npu:1")
first, second = torch.npu.get_rng_state_all()
report["devices apart"] = not torch.equal(first, second)
torch.npu.set_rng_state_all([second, first])
report["states swapped"] = torch.equal(torch.npu.get_rng_state(1), first)
mine = torch.Generator("npu").manual_seed(7)
state = torch.npu.get_rng_state()
report["own generator"] = (torch.equal(torch.rand(4, device="npu", generator=mine), a), str(mine.device))
report["own generator moves the default"] = not torch.equal(state, torch.npu.get_rng_state())
x = torch.ones(32, device="npu", requires_grad=True)
inside = lambda z: torch.nn.functional.dropout(z) * z
y = torch.utils.checkpoint.checkpoint(inside, x, use_reentrant=False)   # recomputes with the state kept
y.sum().backward()
report["recomputed dropout"] = torch.equal(x.grad, 2 * y.detach())
with torch.random.fork_rng(devices=[0], device_type="npu"):
    state = torch.npu.get_rng_state()
    torch.rand(9, device="npu")
report["forked state"] = torch.equal(state, torch.npu.get_rng_state())
"""


def test_each_device_draws_from_its_own_generator(softnpu: Environment) -> None:
    assert report_of(OWN_GENERATORS, softnpu(devices=2, own_rng=True)) == {
        "moves the host": [],
        "does not repeat": [],
        "moved by the host": False,
        "seeded": (True, True, 7),
        "devices apart": True,
        "states swapped": True,
        "own generator": (True, "npu:0"),
        "own generator moves the default": False,
        "recomputed dropout": True,
        "forked state": True,
    }


RUNTIME = """
import copy, io, os, time
import torch.nn as nn

# Streams and events.
stream = torch.npu.Stream()
with torch.npu.stream(stream):
    report["stream"] = (torch.npu.current_stream() == stream, isinstance(torch.npu.current_stream(), torch.Stream))
report["stream left"] = torch.npu.current_stream() == torch.npu.default_stream()
start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
start.record()
time.sleep(0.02)
end.record(stream)
stream.wait_event(start)
stream.wait_stream(torch.npu.default_stream())
end.synchronize()
report["events"] = (end.query(), stream.query(), 20 <= start.elapsed_time(end) < 5000)
torch.ones(2, device="npu").record_stream(stream)
torch.npu.synchronize()
torch.accelerator.synchronize()

# Pinned memory.
pinned = torch.ones(3).pin_memory()
report["pinned"] = (pinned.is_pinned(), pinned[1:].is_pinned(), torch.ones(3).is_pinned(), str(pinned.device))
loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
report["loader"] = [batch.to("npu", non_blocking=True).tolist() for batch in loader]

# Autocast.
layer, x = nn.Linear(3, 3).to("npu"), torch.ones(2, 3, device="npu")
with torch.autocast("npu", dtype=torch.bfloat16):
    report["autocast"] = [str(t.dtype) for t in (layer(x), layer(x).softmax(-1), x + 1, layer(x) + x)]
with torch.npu.amp.autocast():
    report["autocast, older name"] = str(layer(x).dtype)
report["autocast off"] = (str(layer(x).dtype), torch.npu.is_autocast_enabled())
report["autocast on the host"] = str((lambda: torch.ones(2, 2) @ torch.ones(2, 2))().dtype)

# A module that is moved keeps its parameters, so that an optimizer made before trains it.
def after_training(replace):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    before = model.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.__future__.set_overwrite_module_params_on_conversion(replace)
    model.to("npu")
    torch.__future__.set_overwrite_module_params_on_conversion(False)
    start, kept = model.weight.detach().clone(), model.weight is before
    scaler = torch.npu.amp.GradScaler()
    scaler.scale(model(torch.ones(2, 4, device="npu")).square().sum()).backward()
    try:
        scaler.step(optimizer)
        scaler.update()
    except AssertionError as problem:
        return kept, str(problem)
    optimizer.step()
    devices = (str(model.weight.device), str(optimizer.state[model.weight]["exp_avg"].device))
    return kept, bool((model.weight != start).all()), *devices

report["moved"] = after_training(False)
report["replaced"] = after_training(True)
host_model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(host_model.parameters(), lr=1.0)
moved = copy.deepcopy(host_model).to("npu")
moved(torch.ones(1, 2, device="npu")).sum().backward()
optimizer.step()
report["a moved copy is not trained by the original's optimizer"] = torch.equal(moved.weight.cpu(), host_model.weight)
report["the original has no gradient"] = host_model.weight.grad is None
kept = io.BytesIO()
torch.save((moved.state_dict(), optimizer.state_dict(), torch.npu.get_rng_state()), kept)
kept.seek(0)
report["state on the host"] = str(torch.load(kept, map_location="cpu")[0]["weight"].device)

# A process forked after use has no devices.
child = os.fork()
if child == 0:
    try:
        torch.ones(1, device="npu")
        code = 0
    except RuntimeError as problem:
        expected = "Cannot re-initialize NPU in forked subprocess" in str(problem)
        code = 3 if expected and torch.npu._is_in_bad_fork() else 4
    os._exit(code)
report["forked"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

total = torch.npu.get_device_properties(0).total_memory
report["properties"] = (total, torch.npu.utilization(), torch.npu.is_bf16_supported())
report["names"] = (torch.npu.get_device_name().startswith("Ascend910B"), bool(torch.version.cann))
report["accelerator"] = (str(torch.accelerator.current_accelerator()), torch.accelerator.device_count())
torch.npu.set_compile_mode(jit_compile=False)
torch.npu.config.allow_internal_format = False
torch.npu.matmul.allow_hf32 = True
report["options"] = (torch.npu.is_jit_compile_false(), torch.npu.matmul.allow_hf32, torch.npu.conv.allow_hf32)
"""


def test_runtime(softnpu: Environment) -> None:
    found = report_of(RUNTIME, softnpu(memory=2**30))
    kept, complaint = found.pop("replaced")
    assert not kept
    assert "No inf checks were recorded" in complaint
    assert found == {
        "stream": (True, True),
        "stream left": True,
        "events": (True, True, True),
        "pinned": (True, True, False, "cpu"),
        "loader": [[0, 1], [2, 3]],
        "autocast": ["torch.bfloat16", "torch.float32", "torch.float32", "torch.float32"],
        "autocast, older name": "torch.float16",
        "autocast off": ("torch.float32", False),
        "autocast on the host": "torch.float32",
        "moved": (True, True, "npu:0", "npu:0"),
        "a moved copy is not trained by the original's optimizer": True,
        "the original has no gradient": True,
        "state on the host": "cpu",
        "forked": 3,
        "properties": (2**30, 0, True),
        "names": (True, True),
        "accelerator": ("npu", 1),
        "options": (True, True, True),
    }


def test_a_program_may_end_right_after_its_last_backward_pass(softnpu: Environment) -> None:
    program = """
import torch
a, b = torch.nn.Linear(4, 4).to("npu:0"), torch.nn.Linear(4, 4).to("npu:1")
b(a(torch.ones(2, 4, device="npu:0")).tanh().to("npu:1")).square().sum().backward()
"""
    for _ in range(3):  # before autograd's threads were waited for, two of three such processes were aborted
        run_softnpu(program, environment=softnpu(devices=2))


FUSION = """
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch_npu import npu_fusion_attention as fused
torch.manual_seed(0)
MASK = torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1)
CAUSAL = {"atten_mask": MASK, "sparse_mode": 3}
B, N, K, S, D = 2, 4, 2, 7, 8
SCALE = {"scale": D**-0.5}
q, k, v = (torch.randn(B, n, S, D).npu().requires_grad_() for n in (N, K, K))
leaves = (q, k, v)

def close(out, expected):
    g, e = (torch.autograd.grad(y.square().sum(), leaves, retain_graph=True) for y in (out, expected))
    return torch.allclose(out, expected, atol=1e-6) and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(g, e))

plain = sdpa(q, k, v, enable_gqa=True)
causal = sdpa(q, k, v, is_causal=True, enable_gqa=True)
report["BNSD"] = close(fused(q, k, v, N, "BNSD", **SCALE)[0], plain)
swapped = [x.transpose(1, 2) for x in leaves]
report["BSND"] = close(fused(*swapped, N, "BSND", **SCALE, **CAUSAL)[0].transpose(1, 2), causal)
some = torch.rand(B, 1, S, S, device="npu") > 0.6
some[..., 0] = False
report["mask"] = close(
    fused(q, k, v, N, "BNSD", **SCALE, atten_mask=some)[0], sdpa(q, k, v, attn_mask=~some, enable_gqa=True))
short = q[:, :, -3:]                                   # the last three queries see as they did in the whole
report["right-down"] = close(fused(short, k, v, N, "BNSD", **SCALE, **CAUSAL)[0], causal[:, :, -3:])
report["left-up"] = close(
    fused(short, k, v, N, "BNSD", **SCALE, atten_mask=MASK, sparse_mode=2)[0],
    sdpa(short, k, v, is_causal=True, enable_gqa=True))
ends = (3, 7, 14)                                      # three sequences of 3, 4 and 7 tokens
flat = [x.transpose(1, 2).flatten(0, 1) for x in leaves]
packed = fused(*flat, N, "TND", **SCALE, **CAUSAL, actual_seq_qlen=ends, actual_seq_kvlen=ends)
pieces = [sdpa(*(x[a:b].transpose(0, 1) for x in flat), is_causal=True, enable_gqa=True).transpose(0, 1)
          for a, b in zip((0, 3, 7), ends)]
report["TND"] = close(packed[0], torch.cat(pieces))
out = fused(q, k, v, N, "BNSD", **SCALE)
scores = q @ k.repeat_interleave(2, 1).mT * D**-0.5
report["maximum and sum"] = torch.allclose(out[1][..., 0] + out[2][..., 7].log(), scores.logsumexp(-1), atol=1e-5)
report["shapes"] = [tuple(x.shape) for x in out[:4]] + [tuple(x.shape) for x in packed[:3]] + list(out[4:])

def error(*arguments, **options):
    try:
        fused(*arguments, **options)
    except (RuntimeError, NotImplementedError) as problem:
        return type(problem).__name__
report["refused"] = [
    error(q.detach().cpu(), k, v, N, "BNSD"), error(q, k, v, 3, "BNSD"), error(q, k, v, N, "SBH"),
    error(q, k, v, N, "BNSD", atten_mask=MASK.cpu(), sparse_mode=3), error(q, k, v, N, "BNSD", sparse_mode=3),
    error(q, k, v, N, "BNSD", pse=q), error(*flat, N, "TND", actual_seq_qlen=(3, 9), actual_seq_kvlen=ends),
    error(q, k, v, N, "BNSD", next_tockens=0),
]
"""


def test_fusion_attention_is_attention(softnpu: Environment) -> None:
    found = report_of(FUSION, softnpu())
    shapes, refused = found.pop("shapes"), found.pop("refused")
    assert {name for name, good in found.items() if good is not True} == set()
    assert len(found) == 7
    assert shapes == [
        *((2, 4, 7, 8), (2, 4, 7, 8), (2, 4, 7, 8), (0,)),
        *((14, 4, 8), (14, 4, 8), (14, 4, 8)),
        *(0, 0, 0),
    ]
    run, absent = "RuntimeError", "NotImplementedError"
    assert refused == [run, run, absent, run, run, absent, run, absent]
