"""The software NPU has no public name that torch_npu lacks, and none with other parameters.

    pytest -m "contract and slow" tests/softnpu/test_softnpu_contract.py

fetches the release that the software NPU is modelled on (40 MB) and compares the Python sources; nothing is installed
or imported. Without a network the test is skipped.
"""

from __future__ import annotations

import ast
import re
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest
from tests.softnpu_env import ROOT

OURS = ROOT / "testing/softnpu/torch_npu"
RELEASE = "torch-npu==2.10.0.post4"
# The operator itself is C++; this function of the release repeats its parameters.
ELSEWHERE = {"npu_fusion_attention": ("op_plugin/meta/_meta_registrations.py", "npu_fusion_attention_forward")}
NO_NETWORK = re.compile(
    r"NewConnectionError|Temporary failure in name resolution|Network is unreachable|ConnectTimeout"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def definitions(body: list[ast.stmt]) -> dict[str, Definition]:
    return {each.name: each for each in body if isinstance(each, Definition)}


def parameters(function: Function) -> list[tuple[str, str]]:
    """Names, kinds and defaults, in their order: what a caller sees. Annotations are left out."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + given.defaults
    seen = [(argument.arg, default) for argument, default in zip(plain, defaults, strict=True)]
    seen += [(f"*{given.vararg.arg}", None)] if given.vararg else []
    seen += [(f"*, {name.arg}", default) for name, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    seen += [(f"**{given.kwarg.arg}", None)] if given.kwarg else []
    return [(name, "" if default is None else value_of(default)) for name, default in seen]


def value_of(default: ast.expr) -> str:
    try:
        return repr(ast.literal_eval(default))
    except ValueError:  # 2.0**16, torch.float16
        return re.sub(r"\b(\d+)\.(?=\D|$)", r"\1.0", ast.unparse(default))


def attributes(node: ast.ClassDef) -> set[str]:
    """What instances have: methods, and what the class reads or sets on `self` (some of it comes from C++)."""
    read = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"]
    return {each.attr for each in read} | set(definitions(node.body))


def names_of(tree: ast.Module) -> set[str]:
    """What a module's own statements bind."""
    bound = set(definitions(tree.body)) | exported(tree)
    for each in tree.body:
        if isinstance(each, ast.ImportFrom | ast.Import):
            bound |= {alias.asname or alias.name for alias in each.names}
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            bound |= {target.id for target in targets if isinstance(target, ast.Name)}
    return bound


def exported(tree: ast.Module) -> set[str]:
    """A module's `__all__`, or without one what it imports under its own name (`from x import y as y`)."""
    for each in tree.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            return set(ast.literal_eval(each.value))
    imports = [alias for each in tree.body if isinstance(each, ast.ImportFrom) for alias in each.names]
    return {alias.name for alias in imports if alias.asname == alias.name}


def differences(ours: Definition, theirs: Definition) -> list[str]:
    """How a definition of ours breaks what the release's promises."""
    if isinstance(ours, ast.ClassDef) != isinstance(theirs, ast.ClassDef):
        return [f"{ours.name}: a class in one of them only"]
    if isinstance(ours, Function) and isinstance(theirs, Function):
        mine, real = parameters(ours), parameters(theirs)
        return [] if mine == real else [f"{ours.name}: {mine} in place of {real}"]
    assert isinstance(ours, ast.ClassDef)
    assert isinstance(theirs, ast.ClassDef)
    found = []
    known = attributes(theirs)
    for name, method in definitions(ours.body).items():
        counterpart = definitions(theirs.body).get(name)
        if name.startswith("__") and name not in ("__init__", "__new__"):
            continue
        if counterpart is not None:
            found += [f"{ours.name}.{each}" for each in differences(method, counterpart)]
        elif name not in known:
            found.append(f"{ours.name}.{name}: not in the release")
    return found


def broken(ours: Path, theirs: Path) -> list[str]:
    """All public names of our package that the release lacks or has with other parameters."""
    found = []
    for file in sorted(ours.rglob("*.py")):
        where, tree = file.relative_to(ours), ast.parse(file.read_text("utf-8"))
        inner = where.name.startswith("_") and where.name != "__init__.py"
        for name, definition in definitions(tree.body).items():
            if not name.startswith("_") and (name in ELSEWHERE or not inner):
                found += [f"{where}: {each}" for each in broken_definition(definition, where, theirs)]
        if where.name == "__init__.py":
            found += [f"{where}: exports {name}" for name in sorted(exported(tree) - known_names(theirs / where))]
    return found


def broken_definition(definition: Definition, where: Path, theirs: Path) -> list[str]:
    file, name = ELSEWHERE.get(definition.name, (str(where), definition.name))
    source = theirs / file
    known = definitions(ast.parse(source.read_text("utf-8")).body) if source.exists() else {}
    if name not in known:
        return [f"{name} is not in the release's {file}"]
    return differences(definition, known[name])


def known_names(source: Path) -> set[str]:
    """What a package of the release has: what it binds, its modules, its version and C++ part, what is listed above."""
    modules = {path.stem for path in source.parent.glob("*") if path.suffix in ("", ".py")}
    return names_of(ast.parse(source.read_text("utf-8"))) | modules | set(ELSEWHERE) | {"_C"}


def test_comparison_finds_each_kind_of_difference(tmp_path: Path) -> None:
    mine, real = tmp_path / "mine", tmp_path / "real"
    for folder in (mine, real):
        folder.mkdir()
    (mine / "__init__.py").write_text('__all__ = ["a", "sub", "extra"]\nfrom x import a, sub, extra\n')
    (real / "__init__.py").write_text("from .m import a\n")
    (real / "sub.py").write_text("")
    (mine / "m.py").write_text(
        "def a(x, y: int = 1, *, z='q') -> int: ...\n"
        "def b(x): ...\n"
        "def c(x, y=2): ...\n"
        "def _own(): ...\n"
        "def absent(): ...\n"
        "class K:\n    def good(self, v=2.0**16): ...\n    def other(self): ...\n"
        "    def worse(self, w): ...\n    def count(self): ...\n"
    )
    (real / "m.py").write_text(
        'def a(x, y=1, *, z="q"): ...\n'
        "def b(x, more=None): ...\n"
        "def c(x, y=3): ...\n"
        "class K:\n    def good(self, v=2. ** 16):\n        return self.count\n    def worse(self): ...\n"
    )
    (mine / "_inner.py").write_text("def anything(): ...\n")
    assert broken(mine, real) == [
        "__init__.py: exports extra",
        "m.py: b: [('x', '')] in place of [('x', ''), ('more', 'None')]",
        "m.py: c: [('x', ''), ('y', '2')] in place of [('x', ''), ('y', '3')]",
        "m.py: absent is not in the release's m.py",
        "m.py: K.other: not in the release",
        "m.py: K.worse: [('self', ''), ('w', '')] in place of [('self', '')]",
    ]


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_public_name_is_the_releases(tmp_path: Path) -> None:
    venv.create(tmp_path / "tool", with_pip=True)
    options = ["--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"]
    command = [str(tmp_path / "tool/bin/python"), "-m", "pip", "download", "-q", "--no-deps", *options, RELEASE]
    done = subprocess.run([*command, "-d", str(tmp_path)], capture_output=True, text=True, check=False)
    if done.returncode and NO_NETWORK.search(done.stderr):
        pytest.skip("no network: pip can't reach its index")
    assert done.returncode == 0, done.stderr[-2000:]
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path, [name for name in wheel.namelist() if name.endswith(".py")])
    assert broken(OURS, tmp_path / "torch_npu") == []
