"""Values made to hang, kill or confuse the side that judges them."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_RAW = """
import os, struct
def raw(index, text):
    os.write(3, struct.pack('<cII', b'V', index, len(text)) + text)
def message(text):
    os.write(4, struct.pack('<I', len(text)) + text)
"""
_SOURCES = {
    "colliding hashes in a set": "def solve(n): return {i * (2**61 - 1) for i in range(3, 40000)}",
    "colliding hashes, raw": _RAW
    + "text = b'[\"l\", [\"s\",' + b','.join(b'[\"i\", \"%x\"]' % (i * (2**61 - 1)) for i in range(100000)) + b'], null]'\n"
    + "raw(0, text)\ntry:\n    message(text)\nexcept OSError:\n    pass\ndef solve(n): return n",
    "colliding keys, raw": _RAW
    + "text = b'[\"l\", [\"d\",' + b','.join(b'%d, 1' % (i * (2**61 - 1)) for i in range(3)) + b'], null]'\n"
    + "raw(0, text)\ndef solve(n): return n",
    "deep nesting": "def solve(n):\n    value = []\n    for _ in range(100000):\n        value = [value]\n    return value",
    "deep nesting, raw": _RAW
    + "deep = b'[' * 500000 + b']' * 500000\nraw(0, deep)\ntry:\n    message(deep)\nexcept OSError:\n    pass\n"
    + "def solve(n): return n",
    "deep tagged nesting, raw": _RAW
    + "raw(0, b'[\"l\",' * 900 + b'1' + b']' * 900)\ndef solve(n): return n",
    "huge int": "def solve(n): return 1 << 8_000_000",
    "huge decimal, raw": _RAW + "raw(0, b'[\"l\", ' + b'9' * 1_000_000 + b', null]')\ndef solve(n): return n",
    "huge exponent, raw": _RAW + "raw(0, b'[\"l\", 1e999999999, null]')\ndef solve(n): return n",
    "huge string": "def solve(n): return 'x' * 100_000_000",
    "many small values": "def solve(n): return [[i] for i in range(1_000_000)]",
    "cycle": "def solve(n):\n    value = []\n    value.append(value)\n    return value",
    "endless iterator": "import itertools\ndef solve(n): return itertools.count()",
    "message that can't be shown": (
        "class E(Exception):\n    def __str__(self): raise RuntimeError\n    __repr__ = __str__\ndef solve(n): raise E"
    ),
    "huge message": "def solve(n): raise ValueError('x' * 50_000_000)",
    "names with escapes": (
        "E = type('\\x1b[2J\\nPASSED\\x00', (Exception,), {})\ndef solve(n): raise E('\\x1b[31m\\ud800')"
    ),
    "surrogates": "def solve(n): return '\\ud800\\udfff' * 1000",
    "wrong tags, raw": _RAW
    + "for text in (b'[\"q\"]', b'[]', b'{}', b'[[[1]]]', b'[\"i\", {}]', b'[\"b\", 5]', b'[\"d\", 1]', b'[\"y\", \"eval\"]',\n"
    + "             b'[\"h\", [\"l\", \"k\", 0]]', b'\\xff\\xfe', b'', b'NaN', b'[\"l\", [\"s\", [\"l\"]], null]'):\n"
    + "    raw(0, text)\ndef solve(n): return n",
    "odd class": (
        "class Odd:\n    __module__ = property(lambda self: 1 / 0)\n    def __getattribute__(self, name): raise SystemExit\n"
        "    def __bool__(self): raise SystemExit\ndef solve(n): return Odd()"
    ),
    "pretends to be numpy": (
        "class Scalar:\n    def item(self): return Scalar()\nScalar.__module__ = 'numpy'\ndef solve(n): return Scalar()"
    ),
    "argument that grows": "def solve(n, *rest):\n    return [n] * 3_000_000",
    "arguments with behaviour": (
        "class E:\n    def __eq__(self, o): return True\ndef solve(n):\n    import sys\n"
        "    sys._getframe(1).f_locals.update(value=E())\n    return E()"
    ),
}
ATTACKS = tuple(Attack(name, "attacking the judge", source) for name, source in _SOURCES.items())
