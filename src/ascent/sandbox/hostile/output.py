"""Printing what might be taken for the right output. The right one is two lines: the number from standard input and a secret."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_SOURCES = {
    "first line only": "print(input())",
    "nothing": "",
    "many guesses": "n = input()\nfor i in range(100000):\n    print(n)\n    print(i)",
    "right input, wrong secret": "print(input())\nprint('nan')",
    "infinity": "print(input())\nprint('1e999')",
    "huge number": "print(input())\nprint('9' * 300000)",
    "white space": "print(input())\nprint(' ' * 500000)",
    "control characters": "print(input(), end='\\r\\n\\x00\\x1a\\n')",
    "exit": "import sys\nprint(input())\nsys.exit(0)",
    "input echoed": "import sys\nsys.stdout.write(sys.stdin.read() * 2)",
    "writes to its input": (
        "import os\nprint(input())\nfor change in (lambda: os.write(0, b'x'), lambda: os.ftruncate(0, 0), lambda: open('/dev/stdin', 'w').write('x')):\n"
        "    try:\n        change()\n        print('$TOKEN')\n    except OSError:\n        pass"
    ),
    "hangs after printing": "print(input(), flush=True)\nimport time\ntime.sleep(100)",
    "thread at the end": "import threading, time\nprint(input())\nthreading.Thread(target=time.sleep, args=(100,)).start()",
    "exit function that hangs": "import atexit, time\nprint(input())\natexit.register(time.sleep, 100)",
    "flood": "while True:\n    print('x' * 100000)",
    "flood without end of line": "import os\nwhile True:\n    os.write(1, b'9' * 65536)",
    "not UTF-8": "import os\nos.write(1, bytes(range(256)) * 100)",
    "closes its output": "import os\nprint(input())\nos.close(1)\nos.close(2)",
    "reads for ever": "import sys\nwhile True:\n    sys.stdin.read()",
    "parent's output": "import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, b'3\\n')\n        print('$TOKEN')\n    except OSError:\n        pass",
}
ATTACKS = tuple(Attack(name, "output tricks", source, judged="stdio") for name, source in _SOURCES.items())
