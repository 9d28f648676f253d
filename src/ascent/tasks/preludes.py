"""What the reference harnesses of public formats put before a program. Rows of these formats were written and checked
with it, and their starter code counts on it (`List[int]` without an import).

Sources: `lcb_runner/evaluation/testing_util.py` of LiveCodeBench, `eval/testing_util.py` of APPS (TACO's
`metrics/testing_util.py` has the same). LeetCodeDataset brings its own in each row; HumanEval's stands in the prompt,
MBPP's in the setup of its tests.
"""

from __future__ import annotations


def _stars(*modules: str) -> str:
    return "\n".join(f"from {module} import *" for module in modules)


# The builtins come after what hides some of them (`open`, `pow`, `sum`...), as they do in the harness itself.
BUILTINS_AGAIN = _stars("builtins")

LIVECODEBENCH = "\n".join(
    (
        _stars("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
        _stars("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
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
