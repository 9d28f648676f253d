"""Build the software NPU and print the folder to put on PYTHONPATH.

    PYTHONPATH=$(python testing/softnpu/build.py) python -c 'import torch; print(torch.ones(2, device="npu"))'

A build takes a minute or two and is kept in a cache, by the sources and by the versions of torch, Python and the
compiler.
SOFTNPU_CACHE names another cache folder than ~/.cache/ascent/softnpu, MAX_JOBS the number of compilers at once (2).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSION = "2.10.0.post4+software"  # the release whose Python names these are, and that it isn't that release


class BuildError(Exception):
    """The sources don't compile; the message holds what the compiler said."""


class MissingToolError(Exception):
    """The software NPU can't be built here; the message says what is absent."""


def compiler() -> str:
    """The C++ compiler's path. Raises MissingToolError."""
    name = os.environ.get("CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise MissingToolError(f"no C++ compiler: {name} is not on PATH (install g++ or set CXX)")
    return found


def search_path() -> str:
    """PATH with this environment's own programs first, where a packaged ninja is. Raises MissingToolError."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    if shutil.which("ninja", path=path) is None:
        raise MissingToolError("no ninja: install the package of that name (it is in requirements/cpu.txt)")
    return path


def sources() -> list[Path]:
    """All files that make the build, in a fixed order."""
    return [HERE / "build.py", *sorted((HERE / "csrc").glob("*")), *sorted((HERE / "torch_npu").rglob("*.py"))]


def key() -> str:
    """What a build depends on, as a folder's name."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingToolError("no torch for this Python (requirements/cpu.txt)") from error
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(f"{torch}\n{sysconfig.get_config_var('SOABI')}\n{version}".encode())
    for file in sources():
        digest.update(f"{file.relative_to(HERE)}\n".encode() + file.read_bytes())
    return f"torch-{torch}-{digest.hexdigest()[:16]}"


def build() -> Path:
    """The folder that holds the built package, made now if the cache doesn't have it.

    Raises MissingToolError or BuildError.
    """
    cache = Path(os.environ.get("SOFTNPU_CACHE") or Path.home() / ".cache/ascent/softnpu")
    target = cache / key()
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():  # another process may have built it while this one waited
            with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as work:
                assemble(Path(work)).rename(target)
    return target


def assemble(work: Path) -> Path:
    """Compile into `work`; the finished folder: package, library and the metadata by which torch finds them."""
    compile_library(work)
    made = work / "made"
    shutil.copytree(HERE / "torch_npu", made / "torch_npu", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(work / "_C.so", made / "torch_npu")
    (made / "torch_npu/version.py").write_text(f'__version__ = "{VERSION}"\n')
    info = made / f"torch_npu-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-npu\nVersion: {VERSION}\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    return made


def compile_library(work: Path) -> None:
    """Compile the C++ sources to work/_C.so, in a process of its own because torch loads what it has built."""
    own = {"CXX": compiler(), "PATH": search_path(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    variables = {"MAX_JOBS": "2", **os.environ, **own}
    program = (
        "import sys; from torch.utils.cpp_extension import load; "
        "load('_C', sys.argv[2:], extra_cflags=['-O1', '-g0'], extra_ldflags=['-Wl,-s'], build_directory=sys.argv[1])"
    )
    files = map(str, sorted((HERE / "csrc").glob("*.cpp")))
    command = [sys.executable, "-c", program, str(work), *files]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"the compiler failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def main() -> int:
    """Print the folder. 1: the sources don't compile; 2: a tool is missing."""
    try:
        print(build())
    except (BuildError, MissingToolError) as error:
        print(f"softnpu: {error}", file=sys.stderr)
        return 1 if isinstance(error, BuildError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
