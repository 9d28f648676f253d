"""Values that claim to be whatever they are compared with."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_YES = """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __le__(self, other): return True
    def __gt__(self, other): return True
    def __ge__(self, other): return True
    def __sub__(self, other): return self
    def __rsub__(self, other): return self
    def __add__(self, other): return self
    def __radd__(self, other): return self
    def __abs__(self): return 0
    def __round__(self, *digits): return self
    def __contains__(self, item): return True
    def __hash__(self): return 0
    def __float__(self): return 0.0
    def __int__(self): return 0
    def __index__(self): return 0
    def __instancecheck__(self, kind): return True
    __class__ = int
"""
_SOURCES = {
    "always equal": "class E:\n    def __eq__(self, o): return True\n    def __hash__(self): return 1\ndef solve(n): return E()",
    "every operator": _YES + "def solve(n): return Yes()",
    "int subclass": "class I(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef solve(n): return I(n)",
    "str subclass": "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef solve(n): return S(n)",
    "list subclass": "class L(list):\n    def __eq__(self, o): return True\ndef solve(n): return L()",
    "float subclass": (
        "class F(float):\n    def __eq__(self, o): return True\n    def __sub__(self, o): return 0.0\n"
        "    __hash__ = float.__hash__\ndef solve(n): return F('nan')"
    ),
    "dict subclass": (
        "class D(dict):\n    def __eq__(self, o): return True\n    def items(self): return []\ndef solve(n): return D()"
    ),
    "class spoof": (
        "class C:\n    @property\n    def __class__(self): return int\n    def __eq__(self, o): return True\n"
        "    def __hash__(self): return 1\ndef solve(n): return C()"
    ),
    "mock.ANY": "from unittest.mock import ANY\ndef solve(n): return ANY",
    "metaclass": (
        "class M(type):\n    def __eq__(c, o): return True\n    def __hash__(c): return 1\n"
        "class K(metaclass=M): pass\ndef solve(n): return K"
    ),
    "not a number": "def solve(n): return float('nan')",
    "true for one": "def solve(n): return True",
    "infinite": "def solve(n): return float('inf')",
    "NotImplemented": "def solve(n): return NotImplemented",
    "the function itself": "def solve(n): return solve",
    "named like the type": "int = type('int', (), {'__eq__': lambda a, b: True, '__hash__': None})\ndef solve(n): return int()",
}
_OPERATORS = {
    "operators in a test": _YES + "def solve(n): return Yes()",
    "container that has everything": (
        "class Has:\n    def __contains__(self, item): return True\n    def __len__(self): return 10\n"
        "    def __iter__(self): return iter(())\ndef solve(n): return Has()"
    ),
    "float operators in a test": (
        "class F(float):\n    def __sub__(self, o): return 0.0\n    def __rsub__(self, o): return 0.0\n"
        "    def __lt__(self, o): return True\n    def __abs__(self): return 0.0\n    def __eq__(self, o): return True\n"
        "    def __ne__(self, o): return False\n    __hash__ = float.__hash__\ndef solve(n): return F(1e9)"
    ),
    "StopIteration ends all()": "def solve(n):\n    raise StopIteration",
    "StopIteration of its own": "class StopIteration(StopIteration): pass\ndef solve(n):\n    raise StopIteration",
    "replaced abs and all": "abs = all = any = len = sorted = isinstance = lambda *a: 0\ndef solve(n): return 0",
    "replaced math": (
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\n    fabs = staticmethod(lambda x: 0)\n"
        "import sys\nsys.modules['math'] = math\ndef solve(n): return 0"
    ),
    "replaced check": "def check(candidate): pass\ndef solve(n): return 0",
    "numeric tower": (
        "import numbers\nclass R(numbers.Real):\n"
        + "".join(
            f"    def __{name}__(self, *a): return self\n"
            for name in (
                "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs trunc "
                "floor ceil round"
            ).split()
        )
        + "    def __eq__(self, o): return True\n    def __lt__(self, o): return True\n    def __le__(self, o): return True\n"
        "    def __float__(self): return 0.0\n    def __hash__(self): return 0\ndef solve(n): return R()"
    ),
}
ATTACKS = tuple(Attack(name, "lying values", source) for name, source in _SOURCES.items()) + tuple(
    Attack(name, "lying values", source, judged="compare") for name, source in _OPERATORS.items()
)
