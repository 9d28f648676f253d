"""What the reference harnesses of public formats put before a program. Rows of these formats were written and checked
with it, and their starter code counts on it (`List[int]` without an import).

Sources: `lcb_runner/evaluation/testing_util.py` of LiveCodeBench, `eval/testing_util.py` of APPS (TACO's
`metrics/testing_util.py` has the same). LeetCodeDataset brings its own in each row; HumanEval's stands in the prompt,
MBPP's in the setup of its tests.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from functools import lru_cache


def _stars(*modules: str) -> str:
    return "\n".join(f"from {module} import *" for module in modules)


# The builtins come after what hides some of them (`open`, `pow`, `sum`...), as they do in the harness itself.
BUILTINS_AGAIN = _stars("builtins")

_WHOLE = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)

LIVECODEBENCH = "\n".join(
    (
        _stars(*_WHOLE),
        "import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics",
        "import itertools, functools, operator, io, sys, json",
        "sys.setrecursionlimit(50000)\n",
    )
)

# Beyond the harness: all of `typing`, as starter code names more of it than List and Tuple. numpy is there where the
# sandbox was opened with it (`sandbox.packages`).
APPS = "\n".join(
    (
        "import sys, time, itertools, collections, math, fractions, random, heapq",
        "from itertools import accumulate, combinations, permutations, product",
        "from collections import ChainMap, Counter, OrderedDict, defaultdict, deque",
        "from functools import lru_cache",
        "from math import ceil, cos, exp, fabs, floor, gcd, log, log2, sin, sqrt, tan",
        _stars("typing", "heapq"),
        "stdin, stdout = sys.stdin, sys.stdout",
        "try:",
        "    import numpy as np",
        "except ImportError:",
        "    pass\n",
    )
)


def unknown_names(starter: str, prelude: str) -> list[str]:
    """The names in the annotations of starter code that neither it nor one of the preludes above defines: a program
    that begins with it fails there. None where the code can't be read."""
    try:
        tree = ast.parse(f"{starter.rstrip()} pass")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    arguments = [node for function in functions for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    annotations = [node.annotation for node in arguments] + [function.returns for function in functions]
    used = {
        node.id
        for annotation in annotations
        if annotation is not None
        for node in ast.walk(annotation)
        if isinstance(node, ast.Name)
    }
    own = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return sorted(used - own - _imported(ast.unparse(tree)) - _imported(prelude) - set(vars(builtins)))


@lru_cache(maxsize=64)
def _imported(code: str) -> frozenset[str]:
    """The names that the imports in a piece of code make. What is imported wholly must be one of the modules above."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and [alias.name for alias in node.names] == ["*"]:
            if node.module in _WHOLE:
                names |= set(dir(importlib.import_module(node.module)))
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return frozenset(names)
