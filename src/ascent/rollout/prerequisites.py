"""What vLLM needs of a machine before it is started. Asked first, because its own failures come late and say little."""

from __future__ import annotations

import os
import shutil

from ascent.errors import InputError

_COMPILERS = ("c++", "g++", "clang++")


def check_cpu_engine() -> None:
    """Raise InputError when vLLM's CPU engine can't start here: it compiles its sampler and reads `lscpu`."""
    missing = []
    compiler = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ((compiler,) if compiler else _COMPILERS)):
        wanted = f"CXX={compiler}" if compiler else "g++ or clang++"
        missing.append(f"a C++ compiler ({wanted} was not found; vLLM compiles its sampler even in eager mode)")
    if shutil.which("lscpu") is None:
        missing.append("the command lscpu (vLLM reads the processor's layout from it)")
    if missing:
        raise InputError(
            "vLLM can't start on this CPU machine; missing: " + "; ".join(missing),
            "On Debian or Ubuntu: apt-get install g++ util-linux. Or sample without vLLM: rollout.engine=transformers.",
        )
