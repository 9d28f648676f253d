"""Ending before the tests do, in the hope that an end without complaint is a pass."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_SOURCES = {
    "sys.exit at import": "import sys\nsys.exit(0)",
    "os._exit at import": "import os\nos._exit(0)",
    "exit() at import": "exit(0)",
    "SystemExit in the function": "def solve(n):\n    raise SystemExit(0)",
    "os._exit in the function": "import os\ndef solve(n):\n    os._exit(0)",
    "KeyboardInterrupt in the function": "def solve(n):\n    raise KeyboardInterrupt",
    "GeneratorExit in the function": "def solve(n):\n    raise GeneratorExit",
    "AssertionError swallowed": "def solve(n):\n    raise AssertionError",
    "atexit then exit": "import atexit, os, sys\natexit.register(os._exit, 0)\nsys.exit(0)",
    "kills itself": "import os, signal\ndef solve(n):\n    os.kill(os.getpid(), signal.SIGKILL)",
    "ends by SIGTERM": "import os, signal\ndef solve(n):\n    os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os\ndef solve(n):\n    os.abort()",
    "alarm": "import signal, time\nsignal.alarm(1)\ndef solve(n):\n    time.sleep(3)",
    "thread that exits": (
        "import os, threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), os._exit(0))).start()\n"
        "def solve(n):\n    time.sleep(1)"
    ),
    "exit from a destructor": (
        "import os\nclass Bomb:\n    def __del__(self):\n        os._exit(0)\ndef solve(n):\n    Bomb()\n    return n"
    ),
    "exit while its value is read": (
        "import os\nclass Bomb(dict):\n    def items(self):\n        os._exit(0)\n    def __iter__(self):\n"
        "        os._exit(0)\n    def __bool__(self):\n        os._exit(0)\ndef solve(n):\n    return Bomb(a=1)"
    ),
    "exit through C": "import ctypes\ndef solve(n):\n    ctypes.CDLL(None)._exit(0)",
    "null pointer": "import ctypes\ndef solve(n):\n    return ctypes.string_at(0)",
}
ATTACKS = tuple(Attack(name, "leaving early", source) for name, source in _SOURCES.items())
