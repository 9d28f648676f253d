"""`rollout/in_vllm` is what vLLM's own processes load: they must not pay for, nor break by, anything else of Ascent."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ascent

ROOM = Path(ascent.__file__).parent / "rollout" / "in_vllm"
ALLOWED = (*sys.stdlib_module_names, "numpy", "torch", "vllm", "ascent.rollout.in_vllm")
# what vLLM is given by name: the entry point, the middleware, the worker extension, the receiving engine
LOADED = ("plugin", "guard", "worker_extension", "shm_receiver", "http_receiver")


def imported(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_a_file_imports_only_what_every_vllm_process_has(path: Path) -> None:
    wrong = [
        name for name in imported(path) if not any(name == good or name.startswith(f"{good}.") for good in ALLOWED)
    ]
    assert not wrong, f"{path.name} imports {', '.join(wrong)}"


STAND_IN = """
import sys, types
class WeightTransferEngine:
    def __class_getitem__(cls, item): return cls
class Info: ...
base = types.ModuleType("vllm.distributed.weight_transfer.base")
base.WeightTransferEngine, base.WeightTransferInitInfo, base.WeightTransferUpdateInfo = WeightTransferEngine, Info, Info
for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[base.__name__] = base
"""  # vLLM itself takes ten seconds to load


@pytest.mark.torch
def test_loading_them_loads_nothing_else_of_ascent() -> None:
    imports = "\n".join(f"import ascent.rollout.in_vllm.{name}" for name in LOADED)
    code = f"{STAND_IN}{imports}\nprint(*(name for name in sys.modules if name.partition('.')[0] == 'ascent'))\n"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=200)
    found = done.stdout.splitlines()[-1].split()
    ours = "ascent.rollout.in_vllm"
    others = {each for each in found if each != ours and not each.startswith(f"{ours}.")}
    assert others == {"ascent", "ascent.rollout"}
