"""Index of the error messages that released packages raise: writes `data/messages.jsonl`.

    python scripts/message_index.py SITE_PACKAGES... > src/ascent/environment/data/messages.jsonl

Each folder holds installed or unpacked packages (a wheel is a zip: `unzip -d FOLDER x.whl`). Nothing is imported.
Of every `raise`, `assert` and logged error with a literal message, the four words in a row that hardly another message
has are kept, as a checksum: `origins.py` finds by them where a message was written. A line of the index is a file and
the checksums of its messages. Run it again for a new row of releases, over vllm, vllm_ascend, torch_npu, trl,
transformers, accelerate and torch; `--text` prints the messages themselves, to read what is new.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ascent.environment.origins import checksums

# What of each package speaks to people who train and sample; models' own files and tests don't.
PARTS = {
    "vllm": ("",),
    "vllm_ascend": ("",),
    "torch_npu": ("",),
    "trl": ("",),
    "accelerate": ("",),
    "transformers": ("trainer", "training_args", "modeling_", "generation/", "tokenization_", "utils/", "integrations/",
                     "configuration_utils", "processing_utils", "dynamic_module_utils", "models/auto/", "quantizers/"),
    "torch": ("distributed/", "serialization", "nn/modules/module", "utils/data/", "_dynamo/exc", "optim/",
              "multiprocessing/"),
}  # fmt: skip
_LEFT_OUT = (
    "/tests/",
    "/testing/",
    "/benchmarks/",
    "/third_party/",
    "model_executor/models/",
    "/examples/",
    "/_inductor/",
)
_LOGGED = {"error", "critical", "exception", "fatal"}
_SHORTEST, _LONGEST = 16, 400
_SHARED = 2  # files that may share the four words


def messages(root: Path) -> Iterator[tuple[str, str, str]]:
    """(file, what, message) of every literal error message under a folder of packages."""
    for package, parts in PARTS.items():
        for file in sorted((root / package).rglob("*.py")):
            name = file.relative_to(root).as_posix()
            inside = name.removeprefix(f"{package}/")
            if inside.startswith(parts) and not any(each in f"/{name}" for each in _LEFT_OUT):
                yield from _of_file(file, name)


def _of_file(file: Path, name: str) -> Iterator[tuple[str, str, str]]:
    try:
        tree = ast.parse(file.read_text("utf-8", errors="replace"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            what, text = _name(node.exc.func), _text(node.exc.args[0])
        elif isinstance(node, ast.Assert) and node.msg is not None:
            what, text = "AssertionError", _text(node.msg)
        elif isinstance(node, ast.Call) and _name(node.func) in _LOGGED and node.args:
            what, text = "logged", _text(node.args[0])
        else:
            continue
        text = " ".join(text.split())[:_LONGEST]
        if max((len(piece.strip()) for piece in text.split("*")), default=0) >= _SHORTEST:
            yield name, what, text


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    """A literal message with `*` for what is put in; empty where nothing is literal."""
    if isinstance(node, ast.Constant):
        return _without_fields(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        right = _text(node.right) if isinstance(node.op, ast.Add) else ""
        return _text(node.left) + (right or "*" if isinstance(node.op, ast.Add) else "")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _text(node.func.value)
    return ""


def _without_fields(text: str) -> str:
    for field in ("%s", "%d", "%r", "%.2f", "{}"):
        text = text.replace(field, "*")
    return text


def index(found: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    """File -> checksums of the rarest four words of each of its messages."""
    shingles = [[each for piece in text.split("*") for each in checksums(piece)] for _, _, text in found]
    files: dict[str, set[str]] = {}
    for (file, _, _), each in zip(found, shingles, strict=True):
        for shingle in each:
            files.setdefault(shingle, set()).add(file)
    count = Counter({shingle: len(where) for shingle, where in files.items()})
    result: dict[str, list[str]] = {}
    for (file, _, _), each in zip(found, shingles, strict=True):
        rarest = min(each, key=lambda shingle: (count[shingle], shingle), default=None)
        if rarest is not None and count[rarest] <= _SHARED and rarest not in result.setdefault(file, []):
            result[file].append(rarest)
    return result


def main(arguments: list[str]) -> int:
    folders = [each for each in arguments if each != "--text"]
    if not folders:
        print(__doc__, file=sys.stderr)
        return 2
    found = list(dict.fromkeys(entry for folder in folders for entry in messages(Path(folder))))
    if "--text" in arguments:
        for file, what, text in found:
            print(f"{file}\t{what}\t{text}")
        return 0
    for file, marks in sorted(index(found).items()):
        print(json.dumps([file, " ".join(sorted(marks))]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
