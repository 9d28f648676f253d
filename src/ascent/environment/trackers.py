"""Do the trackers that a run will name work here, without a network? Each is tried in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ascent.environment import smoke
from ascent.environment.finding import Finding
from ascent.environment.rules import found

_SECONDS = 120
_BEGIN = """
import importlib.util, os, sys
for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
    os.environ[name] = "http://127.0.0.1:9"  # nobody answers there
from importlib.metadata import version
from pathlib import Path
if importlib.util.find_spec("{module}") is None:
    sys.exit("result: {name} isn't installed: pip install {packages}")
"""
_END = """
kept = [path for path in Path.cwd().rglob("*") if path.is_file()]
assert kept, "it wrote nothing into its folder"
print("result: {name}", version("{distribution}"), "keeps a run without a network")
"""
_TENSORBOARD = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter(log_dir="tensorboard")
writer.add_scalar("reward", 0.5, 1)
writer.close()
"""
_TRACKIO = """
os.environ["TRACKIO_DIR"] = os.path.abspath("trackio")
import trackio
trackio.init(project="doctor", name="try")
trackio.log({"reward": 0.5})
trackio.finish()
"""
_SWANLAB = """
os.environ["SWANLAB_MODE"], os.environ["SWANLAB_LOG_DIR"] = "offline", os.path.abspath("swanlab")
import swanlab
swanlab.init(project="doctor", experiment_name="try")
swanlab.log({"reward": 0.5}, step=1)
swanlab.finish()
"""
_WANDB = """
os.environ["WANDB_MODE"], os.environ["WANDB_DIR"] = "offline", os.getcwd()
import wandb
run = wandb.init(project="doctor", name="try")
run.log({"reward": 0.5})
run.finish()
"""
_MLFLOW = """
os.environ["MLFLOW_TRACKING_URI"] = "sqlite:///" + os.path.abspath("mlflow.db")
import mlflow
mlflow.create_experiment("doctor", Path("mlflow").absolute().as_uri())
mlflow.set_experiment("doctor")
with mlflow.start_run(run_name="try"):
    mlflow.log_metrics({"reward": 0.5}, step=1)
"""
# name in `trainer.report_to` -> module, distribution that says its version, packages that bring it, what is tried
_TRIALS = {
    "tensorboard": ("tensorboard", "tensorboard", "tensorboard", _TENSORBOARD),
    "trackio": ("trackio", "trackio", "trackio", _TRACKIO),
    "swanlab": ("swanlab", "swanlab", "swanlab", _SWANLAB),
    "wandb": ("wandb", "wandb", "wandb", _WANDB),
    "mlflow": ("mlflow", "mlflow-skinny", "mlflow-skinny sqlalchemy alembic", _MLFLOW),
}
NAMES = tuple(_TRIALS)


def check(names: Sequence[str], report: Callable[[smoke.Result], None] = lambda result: None) -> list[Finding]:
    """A finding for each of these trackers (of NAMES), all of which are tried. `report` hears of each at once."""
    findings = []
    with tempfile.TemporaryDirectory(prefix="ascent-trackers-") as folder:
        for name in names:
            result = smoke.run_step(_step(name), Path(folder))
            report(result)
            findings.append(_as_finding(name, result))
    return findings


def _step(name: str) -> smoke.Step:
    module, distribution, packages, trial = _TRIALS[name]
    begin = _BEGIN.format(module=module, name=name, packages=packages)
    return smoke.Step(f"tracker {name}", begin + trial + _END.format(name=name, distribution=distribution), _SECONDS)


def _as_finding(name: str, result: smoke.Result) -> Finding:
    """Under the rule of trackers; what failed isn't a fault of the machine's, so no diagnosis of one is asked for."""
    finding = smoke.as_finding(replace(result, reading=None))
    if finding.level == "ok":
        return found("A802", "ok", finding.what)
    absent = [line for line in result.output.splitlines() if "isn't installed: pip install" in line]
    if absent:
        what, _, mend = absent[-1].removeprefix("result: ").partition(": ")
        return found("A802", "error", what, mend=[mend])
    return found("A802", "error", finding.what, evidence=result.output.splitlines()[-3:])
