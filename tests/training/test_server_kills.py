"""Real servers killed in every phase of a training: each completion is sampled once, with verified weights."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.small_trainer import Memory, vowels

from ascent.rollout.engine import Canary
from ascent.tracking.rollouts import read_rollouts

pytestmark = pytest.mark.torch
PROMPTS, GENERATIONS = 4, 4  # of a generation


def server_pids(folder: Path) -> list[int]:
    """The servers that run now, by their supervisor's own record."""
    from ascent.rollout.service import record

    found = record.read(folder)
    return [replica.pid for replica in found.replicas if replica.pid is not None] if found is not None else []


class Killer:
    """Kills the only server of a service once, at a chosen moment of the second generation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.killed: dict[str, float] = {}  # phase -> when

    def kill(self, phase: str) -> None:
        if phase not in self.killed:
            self.killed[phase] = time.monotonic()
            until = time.monotonic() + 120
            while not (pids := server_pids(self._folder)) and time.monotonic() < until:
                time.sleep(0.1)  # on a busy machine the one before may not have been restarted yet
            os.kill(pids[0], signal.SIGKILL)

    def during(self, named_tensors: Iterable[Any]) -> Iterator[Any]:
        for place, named in enumerate(named_tensors):
            if place == 3:
                self.kill("update")
            yield named


@pytest.fixture
def service(tiny_policy: Callable[..., Path], tmp_path: Path) -> Iterator[Any]:
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.in_vllm.plugin import WORKER_EXTENSION
    from ascent.rollout.service.running import running_service
    from ascent.rollout.service.settings import ServiceSettings

    engine = EngineSettings(str(tiny_policy()), "float32", 64, kv_cache_bytes=64 * 2**20)
    settings = ServiceSettings(engine, "cpu", transport="shm", worker_extension=WORKER_EXTENSION)
    with running_service(settings, name=f"kills-{os.getpid()}", log_folder=tmp_path) as address:
        yield address


@pytest.mark.timeout(1800)
def test_a_server_killed_while_it_samples_while_it_takes_weights_and_between(
    service: Any, tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    from datasets import Dataset

    from ascent import GRPOConfig, GRPOTrainer
    from ascent.rollout.engines.served.engine import ServedEngine
    from ascent.rollout.weights.delivery import WeightDelivery
    from ascent.rollout.weights.transports.shm import ShmTransport

    killer = Killer(service.folder)

    class Watched(ServedEngine):
        def update_weights(self, named_tensors: Iterable[Any], version: int, canary: Canary | None = None) -> None:
            walk = killer.during(named_tensors) if version == 1 else named_tensors
            super().update_weights(walk, version, canary)

    class Watcher(Memory):
        def sampled(self, done: int, total: int) -> None:
            super().sampled(done, total)
            if done == 2 and len(self.generations) == 2:
                killer.kill("sampling")

        def step(self, record: Any) -> Mapping[str, float]:
            found = super().step(record)
            if record.step == 3:
                killer.kill("between")
            return found

    engine = Watched(service, WeightDelivery(ShmTransport("float32"), "float32"), holder_name="test")
    arguments = GRPOConfig(
        str(tmp_path / "out"),
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=12,
        learning_rate=1e-3,
        max_steps=GENERATIONS,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_vllm=True,
        vllm_mode="server",
        seeded_sampling=True,
    )
    rows = [{"prompt": f"def f{number}(a):"} for number in range(PROMPTS * GENERATIONS)]
    memory = Watcher()
    trainer = GRPOTrainer(
        str(tiny_policy()),
        vowels,
        arguments,
        train_dataset=Dataset.from_list(rows),
        engine=engine,
        recorder=memory,
    )
    try:
        trainer.train()
    finally:
        engine.close()
    assert set(killer.killed) == {"sampling", "update", "between"}
    check_every_sample([record for _, records, _ in memory.generations for record in records], range(GENERATIONS), 16)
    for step in memory.steps:
        assert step.metrics["rollout/staleness"] == 0
        difference = step.metrics["sampling/sampling_logp_difference/max"]
        assert difference is not None
        assert difference < 1e-4, f"step {step.step} was sampled with other weights than the trainer's"
    losses = {step.metrics["loss"] for step in memory.steps}
    assert len(losses) == GENERATIONS, "the weights did not change, so old ones could not have been noticed"


def check_every_sample(records: Sequence[Any], generations: Iterable[int], batch: int) -> None:
    """None lost, none twice: by the ids that the rollouts hold."""
    ids = Counter(record.sample_id for record in records)
    assert max(ids.values()) == 1
    for number in generations:
        own = [record for record in records if record.generation == number]
        assert len(own) == batch, f"generation {number}"
        assert len({(record.group_id, record.index) for record in own}) == batch


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("staleness", [0, 1])
def test_fifteen_kills_at_random_moments_of_one_run(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, staleness: int
) -> None:
    """`ascent train` with its own two servers; kills are drawn by seed, over whatever the run is doing."""
    steps, kills, batch = 400, 15, 16
    config = tmp_path / "run.yaml"
    settings = {
        "model": {"path": str(tiny_policy())},
        "tasks": {"train": str(task_file), "held_out": 2},
        "tracking": {"folder": str(tmp_path), "name": "run", "evaluate": False},
        "rollout": {"mode": "server", "replicas": 2, "staleness": staleness, "max_restarts": 100},
        "memory": {"kv_cache_mb": 64},
        "trainer": {
            "num_generations": 4,
            "per_device_train_batch_size": batch,
            "max_completion_length": 12,
            "max_steps": steps,
            "learning_rate": 1e-4,
            "seeded_sampling": True,
        },
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    log = tmp_path / "log.txt"
    with log.open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "ascent", "train", str(config)], stdout=output, stderr=output, env=dict(os.environ)
        )
    draw = random.Random(staleness)
    done = threading.Event()

    def kill_now_and_then() -> None:
        from ascent.rollout.service import record

        killed = 0
        while killed < kills and not done.is_set():
            time.sleep(draw.uniform(2.0, 8.0))
            folders = [folder for folder, found in record.read_all() if found and found.name == f"run-{run.pid}"]
            pids = server_pids(folders[0]) if folders and (tmp_path / "run" / "metrics.jsonl").exists() else []
            if pids:
                os.kill(draw.choice(pids), signal.SIGKILL)
                killed += 1
        killing.append(killed)

    killing: list[int] = []
    thread = threading.Thread(target=kill_now_and_then)
    thread.start()
    code = run.wait()
    done.set()
    thread.join()
    assert code == 0, log.read_text(encoding="utf-8")[-4000:]
    assert killing == [kills], "the run ended before all kills were made: give it more steps"
    rows = read_rollouts(tmp_path / "run" / "rollouts")
    ids = Counter(row["sample_id"] for row in rows)
    assert max(ids.values()) == 1
    places = Counter((row["generation"], row["group_id"], row["index"]) for row in rows)
    assert len(places) == steps * batch
    assert max(places.values()) == 1
    assert all(0 <= row["step"] - 1 - row["weight_version"] <= staleness for row in rows)
