"""One of two training processes over gloo, for test_two_ranks: `torchrun two_ranks.py POLICY FOLDER`.

Rank 0 has a stand-in of a server in its own process. Each scenario trains until the ranks end; what each rank saw is
written to FOLDER/SCENARIO-RANK.json.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.rollout.fake_servers import FakeServer, PostsOnce, address_of
from tests.small_trainer import make_trainer
from tests.training import collectives_on_two_ranks, drawing_on_two_ranks, records_on_two_ranks

from ascent.host.ending import end_at_once
from ascent.rollout.engines.served.engine import ServedEngine
from ascent.rollout.service import record
from ascent.rollout.service.address import from_record
from ascent.rollout.service.processes import start_ticks
from ascent.training.engines import servers

POLICY, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
RANK = int(os.environ["RANK"])


class Failing(PostsOnce):
    """A delivery for which something is missing from version 1 on."""

    def deliver(self, replicas: Any, named_tensors: Any, version: int, canary: Any) -> PostsOnce:
        if version == 1:
            raise ModuleNotFoundError("No module named 'vllm_ascend'")
        return super().deliver(replicas, named_tensors, version, canary)


def wait_for(path: Path) -> str:
    """The text of a file that the other rank writes."""
    until = time.monotonic() + 30
    while not path.is_file():
        assert time.monotonic() < until, f"{path} does not come"
        time.sleep(0.02)
    return path.read_text()


def tell(path: Path, text: str) -> None:
    """Write a file that the other rank waits for."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text)
    beside.replace(path)


def service(name: str, transport: str | None = None) -> tuple[Any, Path, FakeServer | None]:
    """A service of one stand-in, as its record on this machine says: its address, its folder, and on rank 0 the
    stand-in."""
    folder = record.services_folder() / name
    server = None
    if RANK == 0:
        server = FakeServer(FOLDER / f"server-{name}")
        folder.mkdir(parents=True)
        settings = {"engine": {"dtype": "float32"}, "device_kind": "cpu"}
        replicas = (record.ReplicaRecord(server.url, "/logs/replica-0.log", "ready"),)
        pid, started = os.getpid(), start_ticks(os.getpid()) or 0
        token = address_of(server).token
        record.write(
            folder,
            record.ServiceRecord(name, pid, started, "model", 64, token, transport, settings, replicas, "ready"),
        )
        tell(FOLDER / f"{name}.ready", "")
    wait_for(FOLDER / f"{name}.ready")
    found = record.read(folder)
    assert found is not None
    return from_record(folder, found), folder, server


def engine_over(address: Any, kind: type[ServedEngine] = ServedEngine, delivery: Any = None) -> ServedEngine:
    """Rank 0 holds the service, rank 1 joins."""
    hold = FOLDER / f"{address.name}.hold"
    if RANK == 0:
        made = kind(address, delivery or PostsOnce(), holder_name="two-ranks")
        tell(hold, made.hold)
        return made
    return kind(address, None, holder_name="two-ranks", hold=wait_for(hold), sends_weights=False)


def train(scenario: str, engine: ServedEngine) -> None:
    """Train until the ranks end, keep the last whole step, and write down how it went."""
    settings: dict[str, Any] = {"max_steps": 6, "per_device_train_batch_size": 2}
    settings["vllm_importance_sampling_correction"] = False  # the stand-in's log-probabilities are made up
    trainer = make_trainer(POLICY, FOLDER / scenario, engine=engine, **settings)
    began = time.monotonic()
    error: Exception | None = None
    try:
        trainer.train()
    except Exception as ended:  # noqa: BLE001 - it is what the test looks at
        error = ended
    seconds = time.monotonic() - began
    agreed = error is not None and trainer.agreement.ended_with is error
    step = trainer.save_last_step() if agreed else -1
    trainer.accelerator.wait_for_everyone()  # rank 0 writes the mark of a whole checkpoint
    kept = (FOLDER / scenario / f"checkpoint-{step}" / "ascent_state.json").is_file()
    write(scenario, error, agreed=agreed, step=step, kept=kept, seconds=seconds)
    engine.close()


def write(scenario: str, error: Exception | None, **more: Any) -> None:
    tell(
        FOLDER / f"{scenario}-{RANK}.json",
        json.dumps({"kind": type(error).__name__, "message": str(error), "at": time.time(), **more}),
    )


def dies_between_two_submits() -> None:
    """Rank 0 has submitted its part of the third generation when the service fails; rank 1 has not."""
    address, folder, server = service("dies")

    class Dies(ServedEngine):
        submitted = 0

        def submit(self, requests: Any) -> None:
            self.submitted += 1
            if self.submitted == 3 and RANK == 0:
                assert server is not None
                server.gate.clear()  # nothing comes back any more
                super().submit(requests)
                found = record.read(folder)
                assert found is not None
                why = "process 7 was killed by SIGKILL"
                record.write(folder, dataclasses.replace(found, state="failed", why=why))
                return
            if self.submitted == 3:
                while self._dispatcher.failure is None:
                    time.sleep(0.02)
            super().submit(requests)

    train("dies", engine_over(address, Dies))
    if server is not None:
        server.gate.set()
        server.stop()


def transport_is_missing() -> None:
    """Only rank 0 delivers, and finds that it can't."""
    address, _, server = service("missing")
    train("missing", engine_over(address, delivery=Failing()))
    if server is not None:
        server.stop()


def transport_can_not_be_built() -> None:
    """Handles of one process can't be given by a training of two: known when the service is joined."""
    address, _, server = service("unfit", transport="ipc")
    error: Exception | None = None
    try:
        servers.connect(address.name, rank=RANK, processes=2)
    except Exception as ended:  # noqa: BLE001 - it is what the test looks at
        error = ended
    write("unfit", error)
    if server is not None:
        server.stop()


def lost_here_and_updating_there() -> None:
    """Another training takes the server, and gives it weights: rank 0 sees a hold that is lost, rank 1 an update."""
    address, _, server = service("taken")

    class Taken(ServedEngine):
        submitted = 0

        def submit(self, requests: Any) -> None:
            self.submitted += 1
            if self.submitted == 3 and server is not None:
                state = server.guard._state
                state._lease = None
                state.take({"name": "thief", "pid": 1, "host": "here", "since": "now"}, "f" * 32)
                state.begin("f" * 32, 99)
            super().submit(requests)

    train("taken", engine_over(address, Taken))
    if server is not None:
        server.stop()


def main() -> None:
    """All scenarios, one after another, in the same two processes."""
    from accelerate import PartialState

    PartialState(cpu=True)
    transport_can_not_be_built()
    dies_between_two_submits()
    transport_is_missing()
    lost_here_and_updating_there()
    for module in (drawing_on_two_ranks, records_on_two_ranks, collectives_on_two_ranks):
        for scenario in module.SCENARIOS:
            scenario(POLICY, FOLDER, RANK, write)
    end_at_once(0)


if __name__ == "__main__":
    main()
