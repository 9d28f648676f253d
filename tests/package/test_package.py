"""What holds for the package as a whole: light help, lazy names, import rules, where devices may be named."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ascent
from ascent.cli import VERBS, main

SOURCE = Path(ascent.__file__).parent
# each room may import itself and the rooms after it in this order
ORDER = (
    ("cli",),
    ("selftest", "cluster", "bench"),
    ("tuning",),
    ("training",),
    ("report",),
    ("algorithms", "rollout", "rewards", "tracking", "alarms"),
    ("models",),
    ("tasks", "memory"),
    ("compat",),
    ("devices",),
    ("config",),
    ("tables",),
    ("types",),
    ("sandbox",),
)
ANYWHERE = {"errors", "host", "json_numbers"}  # standard library only
ALONE = {"environment", "sandbox"}  # import nothing else of Ascent
MAY_ASK_THE_ENVIRONMENT = {"selftest", "cluster"}  # beside cli: they look at machines; others are told what they need


def modules() -> list[tuple[str, Path]]:
    """(room, file) of every module."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.append((parts[0], path))
    return found


def imports(path: Path) -> set[str]:
    """The rooms of Ascent that a file imports, anywhere in it."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("ascent.")}
    return rooms


def test_imports_go_one_way() -> None:
    rank = {room: place for place, rooms in enumerate(ORDER) for room in rooms}
    wrong = []
    for room, path in modules():
        if room in {"__init__", "__main__", "cli"}:
            continue
        for used in imports(path) - {room} - ANYWHERE - {"__version__"}:
            if used == "environment" and room in MAY_ASK_THE_ENVIRONMENT:
                continue
            if room in ALONE or used == "environment" or rank[used] <= rank[room]:
                types_only = used == "sandbox" and room == "types"
                if not types_only:
                    wrong.append(f"{path.relative_to(SOURCE)} imports ascent.{used}")
    assert not wrong, "\n".join(wrong)


def test_rooms_that_stand_alone_import_the_standard_library_only() -> None:
    standard = set(sys.stdlib_module_names) | {"ascent"}
    for room, path in modules():
        if room not in ALONE | ANYWHERE:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert {name.split(".")[0] for name in names} <= standard, path


def test_devices_are_named_in_few_places() -> None:
    """And there only inside functions, so that importing a module never loads or starts a device."""
    allowed = ("devices.py", "compat/", "rollout/weights/", "environment/")
    pattern = re.compile(r"torch\.(cuda|npu)\b|torch_npu")
    for _, path in modules():
        relative = path.relative_to(SOURCE).as_posix()
        tree = _without_docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if not relative.startswith(allowed):
            assert not pattern.search(ast.unparse(tree)), relative
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                parts = (ast.Name, ast.Attribute, ast.Import, ast.ImportFrom)
                named = [ast.unparse(part) for part in ast.walk(node) if isinstance(part, parts)]
                assert not any(pattern.search(name) for name in named), f"{relative}: {named}"


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def test_no_file_is_too_long() -> None:
    """Data too, but for JSON schemas, which are written by their own rules."""
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".toml", ".json")]
    counted = {
        path.relative_to(SOURCE).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in files
        if not path.name.endswith(".schema.json")
    }
    assert len(counted) > 200
    assert not {name: lines for name, lines in counted.items() if lines > 400}


def import_graph(source: Path) -> dict[str, set[str]]:
    """Which file of the package imports which, anywhere in it: also inside functions and for types only.

    Files are named relative to ``source``, the package's folder. Importing a package means its `__init__.py` alone;
    ``from package import name`` means the file of that name where there is one.
    """
    files = {}
    for path in sorted(source.rglob("*.py")):
        parts = (source.name, *path.relative_to(source).with_suffix("").parts)
        files[".".join(parts).removesuffix(".__init__")] = path
    graph = {}
    for module, path in files.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        used = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                origin = ".".join([*base, *([node.module] if node.module else [])])
                names = [f"{origin}.{alias.name}" for alias in node.names]
                used |= {name if name in files else origin for name in names}
        graph[module] = (used & set(files)) - {module}
    named = {module: path.relative_to(source).as_posix() for module, path in files.items()}
    return {named[module]: {named[each] for each in used} for module, used in graph.items()}


def import_cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The largest groups of files of which each leads to every other."""

    def reached_from(start: str) -> set[str]:
        seen: set[str] = set()
        ends = list(graph[start])
        while ends:
            file = ends.pop()
            if file not in seen:
                seen.add(file)
                ends += graph[file]
        return seen

    reached = {file: reached_from(file) for file in graph}
    return {
        frozenset(other for other in reached[file] if file in reached[other]) for file in graph if file in reached[file]
    }


def test_files_import_each_other_one_way() -> None:
    graph = import_graph(SOURCE)
    assert sum(map(len, graph.values())) > 300
    cycles = import_cycles(graph)
    told = [
        "\n".join(f"{file} imports {', '.join(sorted(graph[file] & cycle))}" for file in sorted(cycle))
        for cycle in sorted(cycles, key=sorted)
    ]
    assert not told, "import cycles:\n" + "\n\n".join(told)


def test_import_cycles_are_found(tmp_path: Path) -> None:
    """In functions, for types, through relative imports, and through a package's `__init__.py`, but not by its name."""
    files = {
        "__init__.py": "",
        "a.py": "def f():\n    from p import b\n",
        "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import f\n",
        "c.py": "import p.d.e",
        "d/__init__.py": "from p.c import x",
        "d/e.py": "from .. import a\nfrom . import g",
        "d/g.py": "from p.d import e as other, name",
        "h.py": "from .d import name",
    }
    for name, text in files.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = import_graph(tmp_path / "p")
    assert graph["h.py"] == {"d/__init__.py"}
    assert graph["c.py"] == {"d/e.py"}
    assert graph["d/g.py"] == {"d/e.py", "d/__init__.py"}
    assert import_cycles(graph) == {
        frozenset({"a.py", "b.py"}),
        frozenset({"c.py", "d/e.py", "d/g.py", "d/__init__.py"}),
    }


@pytest.mark.parametrize("arguments", [["--help"], *([name.replace("_", "-"), "--help"] for name in VERBS)])
def test_help_imports_nothing_but_the_command_line(arguments: list[str]) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from ascent.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "new = {name for name in set(sys.modules) - before if name.split('.')[0] not in sys.stdlib_module_names}\n"
        "allowed = ('ascent', 'ascent.errors', 'ascent.tables')\n"
        "more = {name for name in new if name not in allowed and not name.startswith('ascent.cli')}\n"
        "assert not more, more"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ascent")


def test_every_verb_is_a_file_and_a_line_in_the_table() -> None:
    files = {path.stem for path in (SOURCE / "cli").glob("*.py")} - {"__init__", "verb"}
    assert sorted(VERBS) == sorted(files)


def test_public_names_are_lazy() -> None:
    code = "import sys, ascent; assert 'torch' not in sys.modules; print(sorted(dir(ascent)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=280)
    assert "GRPOTrainer" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'Nothing'; public names: CodeReward"):
        ascent.Nothing  # noqa: B018


@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_public_names_are_there() -> None:
    from ascent import CodeReward, GRPOConfig, GRPOTrainer

    assert [CodeReward.__name__, GRPOConfig.__name__, GRPOTrainer.__name__]


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert ascent.__version__ in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert main(["train"]) == 2
    assert "takes a configuration file, or --resume RUN" in capsys.readouterr().err
    assert main(["train", "--resume", "/nonexistent"]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {path.stem for _, path in modules()}
    assert not names & {"utils", "helpers", "misc", "common"}


def test_settings_may_stand_after_options(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ascent", "train", str(tmp_path / "none.yaml")]
    for more, said in ((["--devices", "2", "a.b=1"], "none.yaml"), (["--devices", "2", "word"], "unrecognized")):
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert said in done.stderr
        assert ("unrecognized" in done.stderr) == (said == "unrecognized")


@pytest.mark.parametrize("arguments", ["--help", "plan --help", "diagnose {log}", "diagnose {log} --json"])
def test_a_reader_that_leaves_is_no_fault(arguments: str, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(f"[ERROR] {number}: torch.cuda.OutOfMemoryError\n" for number in range(3000)))
    command = [sys.executable, "-m", "ascent", *arguments.format(log=log).split()]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
