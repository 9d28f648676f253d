"""Which interpreter runs the slots, and what of this machine its programs may read."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ascent.sandbox.errors import SandboxError

# What common programs import: already there after a fork. Each further module costs every fork, see
# docs/sandbox.md.
PRELOADED = (
    "collections",
    "functools",
    "itertools",
    "math",
    "re",
    "typing",
    "heapq",
    "bisect",
    "string",
    "copy",
)
_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "idlelib", "ensurepip", "turtledemo"})
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The command that starts a slot, the paths that its programs may read, and the paths that show whether
    another user could run it."""

    executable: str
    read: tuple[str, ...]
    probe: tuple[str, ...]
    path: tuple[str, ...]
    modules: tuple[str, ...]

    def command(self, module: str, fd: int) -> list[str]:
        """Starts `ascent.sandbox.inside.<module>` with only the slot's own modules in reach: the packages
        above it are empty stand-ins, so that nothing else of Ascent is loaded."""
        start = (
            "import sys\n"
            f"root = {str(_PACKAGE_ROOT)!r}\n"
            "for name, path in (('ascent', root), ('ascent.sandbox', root + '/sandbox')):\n"
            "    package = sys.modules[name] = type(sys)(name)\n"
            "    package.__path__ = [path]\n"
            f"from ascent.sandbox.inside.{module} import main\n"
            "main()\n"
        )
        return [self.executable, "-S", "-s", "-P", "-c", start, str(fd)]


def find_interpreter(packages: Sequence[str] = ()) -> Interpreter:
    """This process's own interpreter. `packages` are importable third-party packages that programs may use.

    Raises SandboxError when a package isn't installed.
    """
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    read = [path for folder in sorted(standard) for path in _library_entries(Path(folder))]
    read += _system_libraries()
    folders: list[str] = []
    for package in packages:
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise SandboxError(
                f"package {package!r} isn't installed beside {sys.executable}; install it, or leave it out"
            )
        place = Path(next(iter(found.submodule_search_locations)))
        read += [str(place), str(place.parent / f"{place.name}.libs")]
        folders.append(str(place.parent))
    executable = os.path.realpath(sys.executable)
    probe = (
        sysconfig.get_path("stdlib") + "/os.py",
        *(f"{folder}/{name}" for folder, name in zip(folders, packages, strict=True)),
    )
    return Interpreter(executable, tuple(read), probe, tuple(dict.fromkeys(folders)), (*PRELOADED, *packages))


def _library_entries(folder: Path) -> list[str]:
    """The standard library entry by entry: installed packages lie in a folder of it, and may hold a task's
    tests."""
    return sorted(str(entry) for entry in folder.iterdir() if entry.name not in _NOT_LIBRARY)


def _system_libraries() -> list[str]:
    triplet = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    folders = [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64"]
    libdir = sysconfig.get_config_var("LIBDIR")
    shared = [str(path) for path in Path(libdir).glob("lib*.so*")] if libdir and Path(libdir).is_dir() else []
    files = ["/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"]
    return [path for path in [*folders, *shared, *files] if os.path.exists(path)]
