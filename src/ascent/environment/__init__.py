"""Is this machine fit to train, and what went wrong in a run? Standard library only; imports nothing else of Ascent.

It works when torch, CANN or the driver are broken, because that is when it is needed: packages are read
from their
metadata, devices from npu-smi, and what must import torch runs in a process of its own with a time limit.
"""

from ascent.environment.checks import Purpose, run
from ascent.environment.failure import explain_failure
from ascent.environment.faults import Diagnosis, Reading, diagnose_path, diagnose_text
from ascent.environment.finding import Finding, exit_code
from ascent.environment.inventory import Environment
from ascent.environment.machine import inspect
from ascent.environment.preflight import Preflight, environment_json, preflight, write_environment

__all__ = [
    "Diagnosis",
    "Environment",
    "Finding",
    "Preflight",
    "Purpose",
    "Reading",
    "diagnose_path",
    "diagnose_text",
    "environment_json",
    "exit_code",
    "explain_failure",
    "inspect",
    "preflight",
    "run",
    "write_environment",
]
