"""Symptoms that only a series of figures shows; a series of a good run shows none."""

from __future__ import annotations

import pytest

from ascent.environment import faults


def rows(name: str, values: list[float], **others: float) -> str:
    extra = "".join(f", '{key}': {value}" for key, value in others.items())
    return "".join(f"{{'{name}': {value}{extra}}}\n" for value in values)


def engine(usages: list[float], waiting: int = 0, running: int = 3) -> str:
    return "".join(
        f"INFO 01-01 10:00:00 [loggers.py:1] Engine 000: generation throughput: 9.0 tokens/s, Running: {running} reqs, "
        f"Waiting: {waiting} reqs, GPU KV cache usage: {usage}%\n"
        for usage in usages
    )


def idle(rows: int, rate: float = 0.0, running: int = 2, waiting: int = 0) -> str:
    row = (
        "INFO 01-01 10:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        f"Avg generation throughput: {rate} tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 3.0%\n"
    )
    return rows * (row + 'INFO:     127.0.0.1:9 - "GET /health HTTP/1.1" 200 OK\n')


SYMPTOMS = {
    "requests and no token": ("engine-makes-no-progress", idle(2, 80.0) + idle(5)),
    "a queue and no token": ("engine-makes-no-progress", idle(5, running=0, waiting=3)),
    "free memory falls": (
        "device-memory-leaks",
        "".join(f"after sleep: free memory: {60 - 1.5 * i:.2f} GiB\n" for i in range(6)),
    ),
    "allocated memory rises": (
        "device-memory-leaks",
        "".join(f"cycle {i} npu memory allocated: {20000 + 512 * i} MiB\n" for i in range(8)),
    ),
    "cache full": ("kv-cache-full", engine([99.9, 99.5, 98.8, 99.2], waiting=17)),
    "request larger than the cache": (
        "oom-kv-cache",
        engine([90.0, 100.0]) + engine([0.0, 0.0, 0.0], waiting=1, running=0),
    ),
    "loss jumps and stays": ("loss-collapsed", rows("loss", [2.3, 2.2, 2.2, 2.1, 2.1, 7.4, 8.0, 7.9, 7.8])),
    "gradient explodes": (
        "loss-collapsed",
        rows("grad_norm", [0.2, 0.3, 0.2, 0.25, 0.2, 90.0, 80.0, 120.0], loss=0.01),
    ),
    "reward collapses": ("loss-collapsed", rows("reward", [0.5, 0.6, 0.6, 0.7, 0.7, 0.0, 0.0, 0.01, 0.0])),
    "divergence explodes": ("policy-drifts", rows("kl", [0.01, 0.02, 0.02, 0.02, 0.03, 9.0, 30.0, 80.0], loss=0.1)),
    "entropy gone": (
        "policy-drifts",
        rows("entropy", [0.9, 0.9, 0.8, 0.8, 0.5, 0.2, 0.02, 0.01, 0.01, 0.01], loss=0.1),
    ),
    "all completions cut": ("completions-all-cut", rows("completions/clipped_ratio", [1.0] * 5, loss=0.1)),
    "token 0": ("token0-output-fp16-overflow", 'output: "!!!!!!"\n'),
    "token 0, many": ("token0-output-fp16-overflow", "Generated text: '" + "!" * 300 + "'\n"),
}
GOOD = {
    "engine without requests": idle(9, running=0),
    "a long prompt, then tokens": idle(6) + idle(1, 40.0),
    "a short wait at the end": idle(4, 40.0) + idle(2),
    "memory goes up and down": "".join(f"free memory: {60 - (i % 3):.2f} GiB\n" for i in range(9)),
    "memory rises once": "free memory: 60.0 GiB\nfree memory: 20.0 GiB\nfree memory: 20.0 GiB\nfree memory: 19.9 GiB\n",
    "cache busy, nobody waits": engine([99.0, 99.5, 99.9, 98.0]),
    "cache filled for a moment": engine([20.0, 99.5, 40.0, 30.0, 20.0], waiting=2),
    "spike that recovers": rows("loss", [2.3, 2.2, 2.2, 2.1, 5.1, 2.4, 2.2, 2.1, 2.1]),
    "policy loss around 0": rows("loss", [0.001, -0.002, 0.0, 0.001, 0.05, -0.03, 0.02], grad_norm=0.3),
    "reward that wavers": rows("reward", [0.5, 0.2, 0.6, 0.1, 0.7, 0.3, 0.4], loss=0.1),
    "exclamation": 'output: "Great!!"\n' + rows("loss", [0.3, 0.2]),
}


@pytest.mark.parametrize("name", SYMPTOMS)
def test_symptom_is_seen(name: str) -> None:
    expected, log = SYMPTOMS[name]
    primary = faults.diagnose_text(log).primary
    assert primary is not None
    assert primary.fault == expected


@pytest.mark.parametrize("name", GOOD)
def test_good_series_gives_no_alarm(name: str) -> None:
    reading = faults.diagnose_text(GOOD[name])
    assert reading.verdict in ("healthy", "unjudged"), reading.diagnoses


def test_server_log_that_ends_in_its_start_is_no_all_clear() -> None:
    log = (
        "(APIServer pid=1) INFO 11-29 10:00:00 [api_server.py:1] vLLM API server version 0.23.0\n"
        "(EngineCore pid=2) INFO 11-29 10:00:30 [core.py:1] Initializing a V1 LLM engine\n"
    )
    reading = faults.diagnose_text(log)
    assert reading.verdict == "unjudged"
    assert [each.fault for each in reading.diagnoses] == ["start-cut-off"]
    assert not faults.diagnose_text(log + "INFO:     Application startup complete.\n").diagnoses
