"""What does it cost to bring new weights to a standing vLLM server, and to know that they are right?

    python benchmarks/weight_sync.py [--size 135m | 500m | tiny] [--dtype float32] [--rounds 3] [--json]

A Llama with random weights is made on the spot and served by a real vLLM server on this machine. Each round sends all
weights through shared memory, without and with verification, and in the same round copies the same bytes within this
process (the plain copy to compare with), fingerprints them, and takes the way over a checkpoint: save it, and let the
server reload it. Prints medians and ratios. Measure on a quiet machine: `load` is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SHAPES = {  # hidden, intermediate, layers, heads, key and value heads, vocabulary
    "tiny": (128, 256, 4, 4, 2, 512),
    "135m": (576, 1536, 30, 9, 3, 49152),
    "500m": (1024, 4096, 24, 16, 4, 65536),
}


def make_model(folder: Path, size: str, dtype: str) -> Any:
    """A random Llama in `folder`, with the tokenizer of the tests' tiny policy; the model in float32."""
    import torch
    from tests.tiny_policy import build
    from transformers import LlamaConfig, LlamaForCausalLM

    build(folder, tied=True, dtype="float32")
    hidden, intermediate, layers, heads, kv_heads, vocabulary = SHAPES[size]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return model.to(torch.float32)


def canary_of(model: Any) -> Any:
    """Four sequences of 32 tokens and what the model makes of them."""

    from ascent.rollout.weights.verify.canary_sequences import measure

    sequences = tuple(tuple(range(10 + 40 * n, 42 + 40 * n)) for n in range(4))
    return measure(model, sequences, "float32")


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Round:
    """Everything that is measured once, on the same weights."""

    def __init__(self, model: Any, server: Any, dtype: str, folder: Path) -> None:
        import torch

        from ascent.rollout.weights.delivery import WeightDelivery
        from ascent.rollout.weights.transports.shm import ShmTransport

        self.model, self.server, self.folder = model, server, folder
        self.tensors = [(name, parameter.detach().to(getattr(torch, dtype))) for name, parameter in self.walk()]
        self.copies = [torch.empty_like(tensor) for _, tensor in self.tensors]
        self.nbytes = sum(tensor.numel() * tensor.element_size() for _, tensor in self.tensors)
        self.plain = WeightDelivery(ShmTransport(dtype), dtype, verify=False)
        self.verified = WeightDelivery(ShmTransport(dtype), dtype)
        self.canary = canary_of(model)
        self.version = 0

    def walk(self) -> Iterator[tuple[str, Any]]:
        yield from self.model.named_parameters()

    def run(self) -> dict[str, float]:
        """Seconds by what was done."""
        found = {"copy": seconds(self.copy), "fingerprints": seconds(self.fingerprints)}
        found["checkpoint save"] = seconds(self.save)
        found["checkpoint load"] = seconds(self.load)
        self.version += 1
        found["sent"] = seconds(lambda: self.plain.deliver([self.server], self.walk(), self.version))
        self.version += 1
        started = time.perf_counter()
        report = self.verified.deliver([self.server], self.walk(), self.version, self.canary)
        found["sent and verified"] = time.perf_counter() - started
        found["fingerprints"] = min(found["fingerprints"], seconds(self.fingerprints))
        found["copy"] = min(found["copy"], seconds(self.copy))
        return {**found, **{f"verified: {phase}": spent for phase, spent in report.seconds.items()}}

    def copy(self) -> None:
        for (_, tensor), copy in zip(self.tensors, self.copies, strict=True):
            copy.copy_(tensor)

    def fingerprints(self) -> None:
        from ascent.rollout.in_vllm.fingerprints import fingerprint

        for name, tensor in self.tensors:
            fingerprint(name, tensor)

    def save(self) -> None:
        """Into the folder that the server was started from."""
        from safetensors.torch import save_file

        path = self.folder / "model.safetensors"
        save_file(dict(self.tensors), path, metadata={"format": "pt"})
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    def load(self) -> None:
        """vLLM's own reload of the checkpoint, in the same server."""
        self.server.post("/collective_rpc", {"method": "reload_weights"}, timeout=300)


def measure_all(size: str, dtype: str, rounds: int) -> dict[str, Any]:
    """Median seconds, GB/s and ratios."""
    from tests.rollout.weights.http_server import HttpServer

    with tempfile.TemporaryDirectory(prefix="ascent-weight-sync-") as name:
        folder = Path(name) / "model"
        model = make_model(folder, size, dtype)
        server = HttpServer.start(folder, dtype, Path(name) / "server.log")
        try:
            this = Round(model, server, dtype, folder)
            this.run()  # the first warms up
            load = os.getloadavg()[0]
            found = [this.run() for _ in range(rounds)]
        finally:
            server.close()
    medians = {what: statistics.median(each[what] for each in found) for what in found[0]}
    copy = medians["copy"]
    checkpoint = medians["checkpoint save"] + medians["checkpoint load"]
    return {
        "schema": "ascent.benchmark.weight_sync/1",
        "size": size,
        "dtype": dtype,
        "gigabytes": this.nbytes / 1e9,
        "load_before": load,
        "seconds": medians,
        "ratios": {
            "sent / copy": medians["sent"] / copy,
            "sent and verified / copy": medians["sent and verified"] / copy,
            "fingerprints (one side) / copy": medians["fingerprints"] / copy,
            "checkpoint (save, load) / sent": checkpoint / medians["sent"],
            "checkpoint (save, load) / sent and verified": checkpoint / medians["sent and verified"],
        },
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SHAPES), default="135m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    quieten_transformers()
    found = measure_all(args.size, args.dtype, args.rounds)
    if args.json:
        print(json.dumps(found))
        return
    gigabytes = found["gigabytes"]
    print(f"{args.size}, {args.dtype}, {gigabytes:.3f} GB, load before: {found['load_before']:.1f}")
    for what, spent in found["seconds"].items():
        print(f"  {what:24s} {spent:7.3f} s  {gigabytes / spent:7.2f} GB/s")
    for what, ratio in found["ratios"].items():
        print(f"  {what:44s} {ratio:6.2f}")


if __name__ == "__main__":
    main()
