"""Compilers of this machine: where they are and what they may read."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from ascent.sandbox.errors import SandboxError
from ascent.sandbox.types import Language

_INSTALL: dict[Language, str] = {
    "c": "install gcc with its static C library (Debian, Ubuntu: apt-get install gcc libc6-dev)",
    "cpp": "install g++ (Debian, Ubuntu: apt-get install g++)",
    "rust": "install rustc (https://rustup.rs, or apt-get install rustc) and gcc, which links",
}


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that reads a program on standard input and writes `program`, statically linked, into its
    working directory.

    `grants` are the only paths that it may read and execute. `identity` names its version.
    """

    language: Language
    build: tuple[str, ...]
    check: tuple[str, ...]  # is it valid? makes no program
    grants: tuple[str, ...]
    identity: str


def find_toolchain(language: Language) -> Toolchain:
    """Raises SandboxError when the compiler isn't installed."""
    if language == "rust":
        return _rust()
    return _gnu(language)


@functools.cache
def _gnu(language: Language) -> Toolchain:
    compiler = _find("gcc" if language == "c" else "g++", language)
    standard = ["-x", "c", "-std=gnu17"] if language == "c" else ["-x", "c++", "-std=gnu++20"]
    build = (compiler, *standard, "-O2", "-pipe", "-static", "-o", "program", "-", "-lm")
    check = (compiler, *standard, "-fsyntax-only", "-")
    return Toolchain(language, build, check, _gnu_paths(compiler), _version(compiler))


@functools.cache
def _rust() -> Toolchain:
    front = _find("rustc", "rust")  # perhaps rustup's, which chooses a toolchain: ask for the real one
    sysroot = _ask(front, "--print", "sysroot").strip()
    linker = _find("gcc", "rust")
    compiler = os.path.join(sysroot, "bin", "rustc")
    common = (compiler, "--edition", "2021", "--crate-name", "program", "-A", "warnings")
    link = (
        "-C",
        f"linker={linker}",
        "-C",
        "target-feature=+crt-static",
        "-C",
        "opt-level=2",
        "-C",
        "codegen-units=1",
    )
    grants = (os.path.join(sysroot, "bin"), os.path.join(sysroot, "lib"), *_gnu_paths(linker))
    return Toolchain(
        "rust",
        (*common, *link, "-o", "program", "-"),
        (*common, "--emit=metadata", "-o", "checked", "-"),
        grants,
        _version(compiler),
    )


def _find(name: str, language: Language) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(Path.home() / ".cargo" / "bin"))
    if found is None:
        raise SandboxError(f"compiler not found: {name}; {_INSTALL[language]}")
    return found


def _gnu_paths(compiler: str) -> tuple[str, ...]:
    triplet = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    tools = [compiler, *(shutil.which(name) or "" for name in ("gcc", "as", "ld", "ld.bfd", "ld.gold"))]
    inner = [_ask(compiler, f"-print-prog-name={name}").strip() for name in ("cc1", "cc1plus", "collect2")]
    folders = ["/usr/include", "/usr/local/include", "/lib64", f"/lib/{triplet}", f"/usr/lib/{triplet}"]
    folders += [str(Path(path).parents[2]) for path in inner if os.path.isabs(path)]
    library = _ask(compiler, "-print-libgcc-file-name").strip()
    folders.append(str(Path(library).parents[2]))
    paths = [os.path.realpath(path) for path in (*tools, *folders) if path]
    return tuple(dict.fromkeys(path for path in paths if os.path.exists(path)))


def _version(compiler: str) -> str:
    return _ask(compiler, "--version").splitlines()[0]


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"{' '.join(command)} failed: {error}") from error
