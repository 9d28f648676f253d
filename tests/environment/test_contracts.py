"""Every symbol, option, route, variable and entry point that Ascent relies on exists in the pinned releases.

    pytest -m "contract and slow" tests/environment/test_contracts.py

fetches about 170 MB through pip, unpacks it and installs nothing; without a network the test is skipped.
The list is `src/ascent/environment/data/contracts.toml`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

LIST: dict[str, Any] = tomllib.loads(
    resources.files("ascent.environment").joinpath("data/contracts.toml").read_text("utf-8")
)
CHECKS: list[dict[str, Any]] = LIST["contract"]
RELEASES: list[dict[str, Any]] = LIST["release"]
NO_NETWORK = re.compile(
    r"NewConnectionError|Temporary failure in name resolution|Network is unreachable|ConnectTimeout"
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")


def test_list_is_whole() -> None:
    names = {release["name"] for release in RELEASES}
    for contract in CHECKS:
        assert contract["release"] in names
        assert contract["needed_by"]
        assert {"class", "functions", "texts"} & set(contract), contract


def members_of(tree: ast.Module, name: str) -> set[str] | None:
    """Methods, fields and `self.x` attributes of a class, with those of its bases in the same file."""
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    node = classes.get(name)
    if node is None:
        return None
    found: set[str] = set()
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= members_of(tree, base.id) or set()
    for each in ast.walk(node):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(each.name)
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found.add(each.target.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
            found.add(each.attr)
    return found


def missing(folder: Path, contract: dict[str, Any]) -> list[str]:
    """What a contract asks for and the unpacked release doesn't have."""
    files = [file for file in folder.glob(contract["file"]) if file.is_file()]
    if not files:
        return [f"no file {contract['file']}"]
    sources = [file.read_text("utf-8", errors="replace") for file in files]
    lacking = [f"text {text!r}" for text in contract.get("texts", ()) if not any(text in source for source in sources)]
    trees = [ast.parse(source) for source in sources] if {"class", "functions"} & set(contract) else []
    functions = {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    lacking += [f"function {name}" for name in contract.get("functions", ()) if name not in functions]
    if "class" in contract:
        found = next((members for tree in trees if (members := members_of(tree, contract["class"])) is not None), None)
        if found is None:
            return [*lacking, f"class {contract['class']}"]
        lacking += [f"{contract['class']}.{name}" for name in contract["members"] if name not in found]
    return lacking


def test_lookup_finds_and_misses(tmp_path: Path) -> None:
    source = "class Base:\n    size: int = 1\n"
    source += "class One(Base):\n    def go(self):\n        self.speed = 2\ndef helper(): ...\n"
    (tmp_path / "m.py").write_text(source)
    good = {
        "file": "*.py",
        "class": "One",
        "members": ["size", "go", "speed"],
        "functions": ["helper"],
        "texts": ["speed = 2"],
    }
    assert missing(tmp_path, good) == []
    bad = {"file": "m.py", "class": "One", "members": ["stop"], "functions": ["go"], "texts": ["absent"]}
    assert missing(tmp_path, bad) == ["text 'absent'", "function go", "One.stop"]
    assert missing(tmp_path, {"file": "m.py", "class": "Two", "members": []}) == ["class Two"]
    assert missing(tmp_path, {"file": "x.py", "texts": ["a"]}) == ["no file x.py"]


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pinned releases, downloaded and unpacked."""
    work = tmp_path_factory.mktemp("contracts")
    venv.create(work / "tool", with_pip=True)
    pip = [str(work / "tool/bin/python"), "-m", "pip"]
    run_pip([*pip, "install", "-q", "pip>=24", "setuptools==79.0.1", "setuptools-scm>=8", "wheel", "packaging"])
    folders = {}
    for release in RELEASES:
        target = work / release["name"]
        command = [*pip, "download", "-q", "--no-deps", release["requirement"], "-d", str(target)]
        if release["source"]:
            # The archive's metadata can't be made without naming a chip.
            command += ["--no-build-isolation", "--no-binary", ":all:"]
        else:
            command += ["--only-binary", ":all:", "--python-version", "3.11"]
            command += [option for platform in PLATFORMS for option in ("--platform", platform)]
        run_pip(command)
        folders[release["name"]] = unpack(next(target.iterdir()), work / f"{release['name']}-files")
    return folders


def run_pip(command: list[str]) -> None:
    variables = {**os.environ, "SOC_VERSION": "ascend910b1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode and NO_NETWORK.search(done.stderr):
        pytest.skip("no network: pip can't reach its index")
    assert done.returncode == 0, done.stderr[-2000:]


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a wheel or source archive; the folder that holds its files."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith((".py", ".txt", "METADATA"))])
        return folder
    with tarfile.open(archive) as source:
        if sys.version_info >= (3, 12):
            source.extractall(folder, filter="data")
        else:
            source.extractall(folder, [each for each in source.getmembers() if each.isfile() and ".." not in each.name])
    return next(folder.iterdir())


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_releases_keep_what_is_relied_on(unpacked: dict[str, Path]) -> None:
    broken = [
        f"{contract['release']} {contract['file']}: {'; '.join(lacking)} (needed by {contract['needed_by']})"
        for contract in CHECKS
        if (lacking := missing(unpacked[contract["release"]], contract))
    ]
    assert broken == []
