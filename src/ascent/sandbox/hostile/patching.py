"""Changing the interpreter or the judge's own code in the process that runs the program."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_SOURCES = {
    "builtins": (
        "import builtins\nfor name in ('isinstance', 'abs', 'len', 'all', 'any', 'print', 'type', 'repr', 'open', 'compile',\n"
        "             'exec', 'sorted', 'set', 'dict', 'list', 'bool', 'getattr', 'issubclass', 'next'):\n"
        "    setattr(builtins, name, lambda *a, **k: True)\ndef solve(n): return n"
    ),
    "AssertionError": (
        "import builtins\nclass Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\ndef solve(n): return n"
    ),
    "json": (
        "import json, json.encoder, json.decoder\njson.dumps = lambda *a, **k: '[\"l\", true, null]'\n"
        "json.loads = lambda *a, **k: True\ndef solve(n): return n"
    ),
    "the sandbox's modules": (
        "import sys\nfor name, module in list(sys.modules.items()):\n    if name.startswith('ascent'):\n"
        "        for key, value in list(vars(module).items()):\n            if callable(value) and not key.startswith('__'):\n"
        "                try:\n                    setattr(module, key, lambda *a, **k: True)\n"
        "                except Exception:\n                    pass\ndef solve(n): return n"
    ),
    "the comparing": (
        "import sys\nfrom ascent.sandbox.inside import compare\n"
        "compare.holds = compare.same = compare.same_output = lambda *a: True\ndef solve(n): return n"
    ),
    "the sandbox's frames": (
        "import sys\nfrom ascent.sandbox.inside import child, rpc, values\n"
        "child.send_frame(3, b'P', 0)\nchild.send_frame(3, b'V', 0, '[\"l\", true, null]')\n"
        "child.encode = rpc.encode = values.encode = lambda *a: 'true'\ndef solve(n): return n"
    ),
    "os.write": (
        "import os\nreal = os.write\nos.write = lambda fd, data: real(fd, bytes(data).replace(b'F', b'P'))\n"
        "def solve(n): return n"
    ),
    "frames of callers": (
        "import sys\ndef solve(n):\n    frame = sys._getframe()\n    while frame:\n        for key, value in frame.f_locals.items():\n"
        "            if key in ('expected', 'check', 'checks', 'tests', 'answers'):\n                return value\n"
        "        frame = frame.f_back\n    return None"
    ),
    "frames through tracebacks": (
        "def solve(n):\n    try:\n        raise ValueError\n    except ValueError as error:\n"
        "        frame = error.__traceback__.tb_frame.f_back\n"
        "    while frame:\n        frame.f_globals.update(decode=None, encode=lambda *a: '[\"l\", true, null]')\n"
        "        frame = frame.f_back\n    return n"
    ),
    "trace function": (
        "import sys\nseen = []\ndef trace(frame, event, arg):\n    seen.append(frame.f_locals)\n"
        "    frame.f_trace_lines = True\n    return trace\nsys.settrace(trace)\nsys.setprofile(lambda *a: None)\n"
        "def solve(n):\n    for names in seen:\n        if 'expected' in names:\n            return names['expected']\n    return n"
    ),
    "garbage collector's objects": (
        "import gc\ndef solve(n):\n    wanted = [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o]\n"
        "    return wanted[0]['expected'] if wanted else n"
    ),
    "import hook": (
        "import sys\nclass Finder:\n    def find_spec(self, name, path=None, target=None):\n        sys.exit(0)\n"
        "sys.meta_path.insert(0, Finder())\nsys.path_hooks.insert(0, lambda path: sys.exit(0))\ndef solve(n): return n"
    ),
    "exception hooks": (
        "import sys\nsys.excepthook = sys.unraisablehook = sys.breakpointhook = lambda *a: None\n"
        "def solve(n):\n    raise ValueError"
    ),
    "__build_class__ and __import__": (
        "import builtins\nbuiltins.__build_class__ = builtins.__import__ = lambda *a, **k: None\ndef solve(n): return n"
    ),
    "bytes of the interpreter": (
        "import ctypes\ndef solve(n):\n"
        "    one = ctypes.c_long.from_address(id(n) + 24)\n    one.value = 77\n    return n"
    ),
    "code of its callers": (
        "import sys\ndef solve(n):\n    frame = sys._getframe(1)\n"
        "    function = frame.f_globals.get('run_functions')\n"
        "    if function:\n        function.__code__ = (lambda *a: None).__code__\n    return n"
    ),
    "a subinterpreter": (
        "def solve(n):\n    import _xxsubinterpreters as sub\n    one = sub.create()\n"
        "    sub.run_string(one, \"import os; os.write(3, b'P' + bytes(8)); os._exit(0)\")\n    return n"
    ),
}
ATTACKS = tuple(Attack(name, "patching the harness", source) for name, source in _SOURCES.items())
