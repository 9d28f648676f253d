"""The processes of one attempt of a training: how they are started on each node, and how they find each other."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ascent.cluster.agent import Job
from ascent.cluster.places import TrainingPlace
from ascent.config import RunConfig
from ascent.tracking import attempts
from ascent.tracking.run_directory import RunDirectory
from ascent.training.launch import rank_log
from ascent.training.launch.launcher import WORKER

JOB = "launcher"  # the name of a node's job: torch's launcher, which starts the node's ranks


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is the same on all nodes. `overrides`: settings (key=value) that differ from the run's own; `environment`:
    what the ranks are told beside them."""

    number: int
    run: RunDirectory
    resume: bool
    debug: bool
    overrides: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def job_of(place: TrainingPlace, node_rank: int, nodes: int, attempt: Attempt, address: str, port: int) -> Job:
    """What starts the ranks of a place, number `node_rank` of so many. They meet at `address` (of the first place) and
    `port`, where the first place's launcher keeps torch's store."""
    run = attempt.run.path.absolute()
    command = [sys.executable, "-m", "ascent.training.launch.elastic"]
    command += [f"--nnodes={nodes}", f"--node-rank={node_rank}", f"--nproc-per-node={place.ranks}"]
    command += [f"--master-addr={address}", f"--master-port={port}", f"--local-addr={place.node.address}"]
    command += ["--max-restarts=0", "-m", WORKER, str(run), *attempt.overrides]
    command += [*["--resume"] * attempt.resume, *["--debug"] * attempt.debug]
    beginning = str(run / "logs" / f"attempt{attempt.number}")
    ranks = range(place.first_rank, place.first_rank + place.ranks)
    return Job(
        JOB,
        tuple(command),
        {**attempt.environment, **attempts.variables(run, attempt.number), rank_log.VARIABLE: beginning},
        log=f"{beginning}-node{node_rank}.log",
        processes=place.ranks,
        joins=True,  # to reach the judges
        follow=tuple((f"rank {rank}", str(rank_log.rank_log(beginning, rank))) for rank in ranks),
    )


def same_batch(config: RunConfig, ranks: int, fewer: int) -> list[str]:
    """The settings (key=value) with which `fewer` ranks make the global batch that `ranks` make: more passes each. The
    layout has seen to it that these are whole numbers."""
    if fewer == ranks:
        return []
    changed = []
    for key in ("gradient_accumulation_steps", "steps_per_generation"):
        given = config.trainer.get(key)
        if given is None and key == "steps_per_generation":
            continue  # TRL's default follows the other
        passes, rest = divmod(int(given or 1) * ranks, fewer)
        if rest:
            raise ValueError(f"{key} of {given} for {ranks} ranks can't be dealt out to {fewer}")
        changed.append(f"trainer.{key}={passes}")
    return changed


def shared_folder_proof(run: Path, token: str) -> Path:
    """Write a file by which other nodes show that they see the same run directory."""
    path = run / f".shared-{token}"
    path.write_text(token, encoding="ascii")
    return path
