"""How fast do weights travel over HTTP, held against a plain socket copy of the same bytes?

    python benchmarks/weights_over_http.py [--gigabytes 1] [--receivers 2] [--rounds 10] [--json]

Receivers are processes of their own on this machine, each reached under an address of its own, so that each fetches for
itself. In turn, A B A B: the transport `http`, as a delivery uses it (the trainer puts the weights into chunks, each
receiver's real engine fetches and maps them; the model that they are loaded into is a stand-in that only counts), and a
plain copy (the same tensors sent with `sendall` from one thread a receiver, taken with `recv_into` one buffer). Prints
GB/s for each receiver, the median of the rounds' ratios, and a 95 % interval of it by bootstrap. On one machine the
network is its processors, so both ways share them with whatever else runs: `load` is printed too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascent.host.process import set_up_process

set_up_process()
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_TENSOR = 4 * 2**20  # values of four bytes: 16 MiB
_BUFFER = 32 * 2**20  # bytes, as long as a chunk
_DRAWS = 10_000


def take(connection: socket.socket, size: int) -> None:
    """Receive `size` bytes into one buffer, and say so, until the connection ends."""
    buffer = memoryview(bytearray(_BUFFER))
    while True:
        rest = size
        while rest:
            got = connection.recv_into(buffer[: min(rest, _BUFFER)])
            if not got:
                return
            rest -= got
        connection.sendall(b"!")


class PlainCopy:
    """Receivers that take bytes from a socket."""

    def __init__(self, tensors: Sequence[Any], receivers: int) -> None:
        self._parts = [memoryview(tensor.numpy()).cast("B") for tensor in tensors]
        size = sum(len(part) for part in self._parts)
        listening = socket.create_server(("127.0.0.1", 0))
        self._connections = []
        for _ in range(receivers):
            ours = socket.create_connection(listening.getsockname())
            theirs, _ = listening.accept()
            context = multiprocessing.get_context("fork")
            context.Process(target=take, args=(theirs, size), daemon=True).start()
            theirs.close()
            self._connections.append(ours)

    def run(self) -> float:
        """Seconds until all have everything."""
        began = time.perf_counter()
        threads = [threading.Thread(target=self._send, args=(each,)) for each in self._connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began

    def _send(self, connection: socket.socket) -> None:
        for part in self._parts:
            connection.sendall(part)
        assert connection.recv(1) == b"!"


class OverHttp:
    """Receivers with the real engine."""

    def __init__(self, tensors: Sequence[Any], receivers: int) -> None:
        from tests.rollout.weights.receiver import Receiver

        from ascent.rollout.weights.transports.http import HttpTransport

        self._weights = [(f"w{number}", tensor) for number, tensor in enumerate(tensors)]
        self._receivers: list[Any] = [Receiver(f"127.0.0.{number + 1}") for number in range(receivers)]
        for receiver in self._receivers:
            receiver.post("told", {"plain": True})
        self._transport = HttpTransport("float32")
        self.peak_bytes = 0

    def run(self) -> float:
        """Seconds of one delivery."""
        began = time.perf_counter()
        failed = self._transport.send(self._receivers, iter(self._weights), lambda name, tensor: None)
        spent = time.perf_counter() - began
        assert not failed, failed
        return spent

    def memory(self) -> list[int]:
        """The most bytes that each receiver ever had in memory."""
        return [receiver.post("figures", {})["peak_bytes"] for receiver in self._receivers]


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % of the medians of samples drawn from `ratios` lie in it."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_DRAWS))
    return medians[int(0.025 * _DRAWS)], medians[int(0.975 * _DRAWS)]


def measure(gigabytes: float, receivers: int, rounds: int) -> dict[str, Any]:
    """GB/s of both ways and their ratio."""
    import torch

    count = max(1, round(gigabytes * 1e9 / (4 * _TENSOR)))
    tensors = [torch.full((_TENSOR,), float(number)) for number in range(count)]
    plain = PlainCopy(tensors, receivers)
    http = OverHttp(tensors, receivers)
    plain.run(), http.run()  # the first warms up
    load = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {"http": [], "plain": []}
    for _ in range(rounds):
        seconds["http"].append(http.run())
        seconds["plain"].append(plain.run())
    size = 4 * _TENSOR * count / 1e9
    ratios = [theirs / ours for ours, theirs in zip(seconds["http"], seconds["plain"], strict=True)]
    low, high = interval(ratios)
    return {
        "schema": "ascent.benchmark.weights_over_http/1",
        "gigabytes": size,
        "receivers": receivers,
        "rounds": rounds,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load,
        "gigabytes_per_second": {way: size / statistics.median(spent) for way, spent in seconds.items()},
        "ratio": {"median": statistics.median(ratios), "low": low, "high": high},
        "receivers_peak_bytes": http.memory(),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--receivers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.gigabytes, args.receivers, args.rounds)
    if args.json:
        print(json.dumps(found))
        return
    print(
        f"{found['gigabytes']:.2f} GB to {args.receivers} receivers, {args.rounds} rounds, {found['cores']} cores, "
        f"load before: {found['load_before']:.1f}"
    )
    for way, speed in found["gigabytes_per_second"].items():
        print(f"  {way:6s} {speed:6.2f} GB/s to each receiver at once")
    ratio = found["ratio"]
    print(f"  http / plain: {ratio['median']:.2f} (95 %: {ratio['low']:.2f} to {ratio['high']:.2f})")
    print(f"  receivers' memory at most: {max(found['receivers_peak_bytes']) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
