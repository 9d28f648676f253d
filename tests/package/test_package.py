"""What holds for the package as a whole: light help, lazy names, import rules, where devices may be named."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ascent
from ascent.cli import main

SOURCE = Path(ascent.__file__).parent
# each room may import itself and the rooms after it in this order
ORDER = (
    ("cli",),
    ("selftest",),
    ("training",),
    ("algorithms", "rollout", "rewards", "tracking", "report"),
    ("models",),
    ("tasks", "memory"),
    ("compat",),
    ("devices",),
    ("config",),
    ("config_file", "trainer_fields"),
    ("renamed", "tables", "trl_fields"),
    ("types",),
    ("sandbox",),
)
ANYWHERE = {"errors", "process"}  # standard library only
ALONE = {"environment", "sandbox"}  # import nothing else of Ascent
MAY_ASK_THE_ENVIRONMENT = {"selftest"}  # beside cli; the others are told what they need


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
        if room not in ALONE | ANYWHERE and path.name != "process.py":
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


def test_the_trainer_stays_readable() -> None:
    assert len((SOURCE / "training" / "trainer.py").read_text(encoding="utf-8").splitlines()) <= 400


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['ascent', '--help']\n"
        "from ascent.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'pydantic', 'yaml', 'rich', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_public_names_are_lazy() -> None:
    code = "import sys, ascent; assert 'torch' not in sys.modules; print(sorted(dir(ascent)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert "GRPOTrainer" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'Nothing'; public names: CodeReward"):
        ascent.Nothing  # noqa: B018


@pytest.mark.torch
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
