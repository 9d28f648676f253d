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
from collections.abc import Callable
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


def key(files: list[Path]) -> str:
    """What is made of these files, as a folder's name. Raises MissingToolError."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingToolError("no torch for this Python (requirements/cpu.txt)") from error
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256(f"{torch}\n{sysconfig.get_config_var('SOABI')}\n{version}".encode())
    for file in [HERE / "build.py", *files]:
        digest.update(f"{file.relative_to(HERE)}\n".encode() + file.read_bytes())
    return f"torch-{torch}-{digest.hexdigest()[:16]}"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The cache's folder of that name; `make` fills it if it isn't there, once even if two processes ask at once."""
    cache = Path(os.environ.get("SOFTNPU_CACHE") or Path.home() / ".cache/ascent/softnpu")
    target = cache / name
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():  # another process may have made it while this one waited
            with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as work:
                made = Path(work) / "made"
                made.mkdir()
                make(made)
                made.rename(target)
    return target


def build() -> Path:
    """The folder that holds the built package, made now if need be. Raises MissingToolError or BuildError."""
    sources = sorted((HERE / "csrc").glob("*"))
    package = sorted((HERE / "torch_npu").rglob("*.py"))
    library = cached("library-" + key(sources), compile_library) / "_C.so"
    return cached(key([*sources, *package]), lambda made: assemble(made, library))


def assemble(made: Path, library: Path) -> None:
    """Lay out what goes on PYTHONPATH: the package, and the metadata by which torch finds it."""
    shutil.copytree(HERE / "torch_npu", made / "torch_npu", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(library, made / "torch_npu")
    (made / "torch_npu/version.py").write_text(f'__version__ = "{VERSION}"\n')
    info = made / f"torch_npu-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-npu\nVersion: {VERSION}\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")


def compile_library(made: Path) -> None:
    """Compile the C++ sources to made/_C.so, in a process of its own because torch loads what it has built."""
    own = {"CXX": compiler(), "PATH": search_path(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    variables = {"MAX_JOBS": "2", **os.environ, **own}
    program = (
        "import sys; from torch.utils.cpp_extension import load; "
        "load('_C', sys.argv[2:], extra_cflags=['-O1', '-g0'], extra_ldflags=['-Wl,-s'], build_directory=sys.argv[1])"
    )
    files = map(str, sorted((HERE / "csrc").glob("*.cpp")))
    with tempfile.TemporaryDirectory(dir=made.parent) as work:
        command = [sys.executable, "-c", program, work, *files]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"the compiler failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        shutil.copy2(Path(work) / "_C.so", made)


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
