"""Where trackers keep what they get, and which of their runs a resumed run goes on in: their variables.

Set before the trackers' packages are imported (trackio reads its folder then). What the user has set stays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from ascent.tracking.run_directory import RunDirectory
from ascent.tracking.trackers.ids import read_ids
from ascent.tracking.trackers.names import Known

PROJECT = "ascent"
# a tracker that sends to a service unless told otherwise: its key, the variable of its mode
_SENDING = {"wandb": ("WANDB_API_KEY", "WANDB_MODE"), "swanlab": ("SWANLAB_API_KEY", "SWANLAB_MODE")}


def prepare(run: RunDirectory, trackers: Sequence[Known], environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Set the variables of the trackers of a run; the sentences that the user should read."""
    ids = read_ids(run.trackers) if run.trackers.is_file() else {}
    notes = []
    for known in trackers:
        wanted = {**_place(known.name, run.path.absolute()), **_resumed(known.name, ids.get(known.name, {}))}
        if known.name in _SENDING:
            key, mode = _SENDING[known.name]
            if not environ.get(key) and not environ.get(mode):
                wanted[mode] = "offline"
                place = run.path / known.name
                notes.append(f"{known.name} writes into {place} and sends nothing: neither {mode} nor {key} is set")
        for name, value in wanted.items():
            environ.setdefault(name, value)
    return notes


def keep_tables_beside(mlflow: Any, folder: Path) -> None:
    """Make MLflow's experiment with its files in the run directory, where its database is too: by itself it would keep
    them where the command was given. `mlflow` is its module."""
    uri, experiment = os.environ.get("MLFLOW_TRACKING_URI"), os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
    if uri != _place("mlflow", folder.absolute())["MLFLOW_TRACKING_URI"]:
        return
    mlflow.set_tracking_uri(uri)
    if mlflow.get_experiment_by_name(experiment) is None:
        mlflow.create_experiment(experiment, (folder.absolute() / "mlflow").as_uri())


def _place(name: str, folder: Path) -> dict[str, str]:
    own = folder / name
    if name == "tensorboard":
        return {"TENSORBOARD_LOGGING_DIR": str(own)}
    if name == "trackio":
        return {"TRACKIO_DIR": str(own)}
    if name == "swanlab":
        return {"SWANLAB_LOG_DIR": str(own)}
    if name == "wandb":
        return {"WANDB_DIR": str(folder), "WANDB_PROJECT": PROJECT}  # it makes a folder wandb in it
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}", "MLFLOW_EXPERIMENT_NAME": PROJECT}


def _resumed(name: str, kept: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a tracker goes on in the run that it had before."""
    if "run_id" not in kept:
        return {}
    if name == "wandb":
        return {"WANDB_RUN_ID": kept["run_id"], "WANDB_RESUME": "allow"}
    if name == "swanlab":
        return {"SWANLAB_RUN_ID": kept["run_id"], "SWANLAB_RESUME": "allow"}
    return {"MLFLOW_RUN_ID": kept["run_id"]} if name == "mlflow" else {}
