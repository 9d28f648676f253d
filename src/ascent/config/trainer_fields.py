"""The names and simple types of `GRPOConfig`'s fields, read from the installed packages' source without importing them.

Importing transformers and torch takes seconds; a misspelt setting should be told at once.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ascent.errors import InputError

_SIMPLE = {"int": int, "float": float, "bool": bool, "str": str, "None": type(None)}
_ALSO: dict[str, tuple[type, ...]] = {"scale_rewards": (bool,)}  # what TRL takes beyond its annotation
_SOURCES = (  # package, file, class; later ones override earlier ones
    ("transformers", "training_args.py", "TrainingArguments"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
    ("trl", "trainer/grpo_config.py", "GRPOConfig"),
    ("ascent", "training/arguments.py", "GRPOConfig"),
)


@cache
def trainer_fields() -> dict[str, tuple[type, ...] | None]:
    """Field name -> the types it takes, or None where the annotation holds others than int, float, bool, str, list,
    dict and None. Enumerations are given by their text.

    Raises InputError when TRL or transformers is not installed.
    """
    fields: dict[str, tuple[type, ...] | None] = {}
    for package, file, class_name in _SOURCES:
        tree = ast.parse((_package_folder(package) / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                fields.update(_annotated(node))
    for name, more in _ALSO.items():
        fields[name] = (*(fields[name] or ()), *more)
    return fields


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(
            f"the package {package} is not installed, so nothing can be trained here",
            "Run `make train`, or install the training packages as docs/install.md says.",
        )
    return Path(spec.origin).parent


def _annotated(node: ast.ClassDef) -> Iterator[tuple[str, tuple[type, ...] | None]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotation = ast.unparse(statement.annotation)
            if not annotation.startswith("ClassVar"):
                yield statement.target.id, _types(annotation)


def _types(annotation: str) -> tuple[type, ...] | None:
    """`float | None` -> (float, NoneType, int); None for anything richer."""
    if annotation.startswith("Optional[") and annotation.endswith("]"):
        annotation = annotation[len("Optional[") : -1] + " | None"
    names = [name.strip() for name in annotation.split("|")]
    types = [_type(name) for name in names]
    if str in types and any(name.isidentifier() and kind is None for name, kind in zip(names, types, strict=True)):
        types = [kind for kind in types if kind is not None]  # an enumeration
    known = [kind for kind in types if kind is not None]
    if len(known) < len(types):
        return None
    return (*known, int) if float in known else tuple(known)


def _type(name: str) -> type | None:
    """The type that a part of an annotation names; None where it is none of the simple ones."""
    for start, kind in (("list[", list), ("dict[", dict), ("Literal[False]", bool), ("Literal[True]", bool)):
        if name.startswith(start):
            return kind
    return {**_SIMPLE, "list": list, "dict": dict}.get(name)
