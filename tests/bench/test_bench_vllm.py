"""`ascent bench` with a real engine, and beside vLLM's own benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from tests.bench.counting_engine import ragged
from tests.tiny_policy import build

from ascent.models.folder import load_tokenizer
from ascent.tuning.probe import Group
from ascent.tuning.workload import Workload

pytestmark = [pytest.mark.slow, pytest.mark.torch]
_ROWS = 4
# `vllm bench throughput`, whose command doesn't start with the CPU build: it asks for a distribution named vllm
_THROUGHPUT = """
from vllm.benchmarks import throughput
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
throughput.add_cli_args(parser)
throughput.main(parser.parse_args())
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bench") / "policy", tied=False, dtype="float32")


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return [f"def f{place}(a, b):\n    return a + {place} * b\n" for place in range(12)]


@pytest.fixture(scope="module")
def workload(policy: Path, prompts: list[str]) -> Workload:
    tokenizer = load_tokenizer(policy)
    lengths = [max(4, length) for length in ragged(48, 150)]  # vLLM's benchmark leaves shorter ones out
    groups = (
        Group(tuple(tokenizer(prompt)["input_ids"]), tuple(lengths[4 * place : 4 * place + 4]))
        for place, prompt in enumerate(prompts)
    )
    return Workload(tuple(groups), "as drawn")


@pytest.fixture(scope="module")
def told(policy: Path, workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command prints, with the picture's path."""
    folder = tmp_path_factory.mktemp("told")
    workload.write(folder / "workload.json")
    (folder / "tune.yaml").write_text("rollout:\n  max_num_seqs: 48\nmemory:\n  kv_cache_mb: 256\n")
    command = [sys.executable, "-m", "ascent", "bench", str(policy), "--workload", str(folder / "workload.json")]
    command += ["--tuned", str(folder / "tune.yaml"), "--rows", str(_ROWS), "--repeat", "2", "--json"]
    command += ["--svg", str(folder / "bench.svg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "svg": folder / "bench.svg", "text": done.stderr}


@pytest.mark.timeout(1200)
def test_all_stages_are_measured(told: dict[str, Any], workload: Workload) -> None:
    stages = {stage["stage"]: stage for stage in told["stages"]}
    assert list(stages) == ["padded", "static", "dynamic", "batching", "memory-layout", "tuned"]
    assert stages["tuned"]["same_as"] == "memory-layout"
    assert stages["batching"]["settings"] == {"max_num_seqs": 48}
    for name in ("padded", "static", "dynamic", "batching", "memory-layout"):
        stage = stages[name]
        assert len(stage["seconds"]) == 2
        assert 0 < stage["kv_cache_use"] <= 1
        assert 0 < stage["memory"]["percent"] < 100
        assert 0 < stage["between_tokens"]["median"] <= stage["between_tokens"]["p95"]
        assert stage["tokens_per_second"] == pytest.approx(workload.tokens / sorted(stage["seconds"])[0], rel=1)
    assert min(stages["dynamic"]["seconds"]) < min(stages["static"]["seconds"])
    assert min(stages["batching"]["seconds"]) < min(stages["dynamic"]["seconds"])
    # who waits for a turn waits longer for the first token; a batch is submitted when it is its turn
    assert stages["dynamic"]["first_token"]["median"] > 5 * stages["static"]["first_token"]["median"]
    assert list(told["bound"]["step_seconds"]) == ["1", "2", "4"]
    assert 0 < told["bound"]["seconds"] <= told["bound"]["in_order_seconds"]
    assert "the bound of dynamic batching" in told["text"]
    ElementTree.fromstring(told["svg"].read_text())


@pytest.mark.timeout(1200)
def test_vllms_own_benchmark_says_the_same(
    told: dict[str, Any], policy: Path, workload: Workload, prompts: list[str], tmp_path: Path
) -> None:
    """All at once with as many rows, on the same prompts and lengths. It samples without log-probabilities and orders
    the requests by chance, and the machine may be busy: within a factor of two."""
    tokenizer = load_tokenizer(policy)
    assert len(tokenizer("~" * 9)["input_ids"]) == 9  # its lengths are those of texts
    rows = [
        {"conversations": [{"value": prompt}, {"value": "~" * length}]}
        for prompt, group in zip(prompts, workload.groups, strict=True)
        for length in group.lengths
    ]
    (tmp_path / "conversations.json").write_text(json.dumps(rows))
    options = {
        "model": policy,
        "dtype": "float32",
        "dataset-name": "sharegpt",
        "dataset-path": tmp_path / "conversations.json",
        "num-prompts": len(rows),
        "num-warmups": 8,
        "max-num-seqs": _ROWS,
        "max-model-len": 256,
        "kv-cache-memory-bytes": 2**28,
        "output-json": tmp_path / "told.json",
    }
    command = [sys.executable, "-c", _THROUGHPUT, "--enforce-eager", "--disable-detokenize"]
    command += [f"--{name}={value}" for name, value in options.items()]
    passive = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # as Ascent's processes wait: a busy neighbour costs less
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, cwd=tmp_path, env=passive)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads((tmp_path / "told.json").read_text())
    ours = next(stage for stage in told["stages"] if stage["stage"] == "dynamic")
    assert theirs["num_requests"] == len(rows)
    assert 0.5 < ours["sequences_per_second"] / theirs["requests_per_second"] < 2
