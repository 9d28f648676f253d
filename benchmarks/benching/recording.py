"""The lengths that benchmarks/bench.py replays: those of a training of its policy, kept in a file before measuring."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from stepping.workloads import WORKLOADS, make_policy

from ascent.tracking.rollouts import read_rollouts
from ascent.tuning import workload as workloads
from ascent.tuning.workload import Workload

_HERE = Path(__file__).resolve().parent
CONFIG, LENGTHS = _HERE / "recorded.yaml", _HERE / "ragged.json"
ROWS = 8  # N: completions of a static batch, and those that dynamic batching has at a time
_SHORTEST = 8  # tokens: completions that end sooner are left out


def policy(folder: Path) -> Path:
    """The random Llama of five million parameters whose training was recorded; the same every time."""
    return make_policy(WORKLOADS["ragged"], folder / "policy")


def record(folder: Path) -> None:
    """Train one step, and keep prompts and lengths in `LENGTHS`."""
    settings = [f"model.path={policy(folder)}", f"tracking.folder={folder}", "tracking.name=ragged"]
    subprocess.run([sys.executable, "-m", "ascent", "train", str(CONFIG), *settings], check=True)
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for row in read_rollouts(folder / "ragged" / "rollouts"):
        if len(row["completion_ids"]) >= _SHORTEST:
            _, lengths = groups.setdefault(row["group_id"], (row["prompt_ids"], []))
            lengths.append(len(row["completion_ids"]))
    source = f"the completions of at least {_SHORTEST} tokens of the generation that recorded.yaml trains on"
    kept = {"schema": workloads.SCHEMA, "rows": ROWS, "source": source}
    lines = ",\n".join(json.dumps(group) for group in groups.values())
    LENGTHS.write_text(f'{json.dumps(kept)[:-1]}, "groups": [\n{lines}\n]}}\n', encoding="utf-8")


def recorded() -> tuple[Workload, int]:
    """The kept workload, and N."""
    return workloads.read(LENGTHS), int(json.loads(LENGTHS.read_text(encoding="utf-8"))["rows"])
